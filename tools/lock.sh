#!/bin/sh
# Write requirements.lock: every dependency of every member and of the development tools, with hashes, without addresses.
# With --check: say whether the file is what the pyproject.toml files ask for (versions are kept where they still fit).
set -eu
cd "$(dirname "$0")/.."
out=requirements.lock
if [ "${1:-}" = --check ]; then
  out=$(mktemp)
  cp requirements.lock "$out"
  trap 'rm -f "$out"' EXIT
fi
members=""
for name in queuecore relayq relayq-gateway relayq-relay relayq-reaper relayq-mock-inference; do
  members="$members --no-emit-package $name"
done
# shellcheck disable=SC2086 # one word a flag
.venv/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
  --all-extras --group dev pyproject.toml libs/*/pyproject.toml services/*/pyproject.toml $members -o "$out"
[ "$out" = requirements.lock ] || cmp -s "$out" requirements.lock || { echo "requirements.lock is not current: run make lock" >&2; exit 1; }
