#!/bin/sh
# Everything that can be said about the chart without a cluster: lint, unit tests, generated files, schemas, contract
# tests. A tool that is missing is named; with CI=true that is a failure. KUBECONFORM_SCHEMAS holds kubeconform's options
# for where its schemas are (KEDA's included); without it Kubernetes' own are fetched and other kinds are passed over.
set -u
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-.venv/bin/python}
schemas=${KUBECONFORM_SCHEMAS:--strict -ignore-missing-schemas}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
missing=0

step() { # NAME COMMAND...
  name=$1
  shift
  if "$@" >"$work/output" 2>&1; then
    echo "ok      $name"
  else
    echo "FAILED  $name"
    cat "$work/output"
    failed=1
  fi
}

have() { # TOOL WHAT-FOR COMMAND...
  tool=$1 what=$2
  shift 2
  "$@" >/dev/null 2>&1 && return
  echo "MISSING $tool: $what not checked"
  missing=1
  return 1
}

# shellcheck disable=SC2317 # called by name
conforms() { # VALUES
  # The Prometheus operator's kinds: no schema of theirs comes with Kubernetes or KEDA.
  # shellcheck disable=SC2086 # several options in one variable
  helm template check charts/relayq --namespace queue --values "$1" >"$work/rendered.yaml" &&
    kubeconform $schemas -skip PodMonitor,PrometheusRule "$work/rendered.yaml"
}

step "values.schema.json and README.md are what values.yaml says" "$python" charts/generate.py --verify
if have helm "the templates are" helm version; then
  for values in charts/relayq/ci/*-values.yaml; do
    step "lint $(basename "$values")" helm lint --strict charts/relayq --values "$values"
  done
  if have helm-unittest "each template by itself is" helm unittest --help; then
    step "unit tests of the templates" helm unittest charts/relayq
  fi
  if have kubeconform "what the API server would say is" kubeconform -v; then
    for values in charts/relayq/ci/*-values.yaml; do
      step "conforms $(basename "$values")" conforms "$values"
    done
  fi
  step "names, secrets, environments and null overrides" "$python" -m pytest -q tests/chart
fi

if [ $missing = 1 ] && [ "${CI:-}" = true ]; then
  echo "CI=true: every tool is needed"
  exit 1
fi
exit $failed
