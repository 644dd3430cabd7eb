# relayq. `make` lists what there is; every target that needs it makes .venv first.
SHELL := /bin/sh
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
MEMBERS := libs/queuecore libs/client services/gateway services/relay services/reaper services/mock-inference
JOBS ?= 2

-include deploy/docker.mk

## help: this list
.PHONY: help
help:
	@sed -n 's/^## \([^:]*\): /\1\t/p' $(MAKEFILE_LIST) | sort | awk -F '\t' '{ printf "  make %-14s %s\n", $$1, $$2 }'

.venv/.ready: requirements.lock $(addsuffix /pyproject.toml,$(MEMBERS))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; say PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "making .venv from requirements.lock"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv || { echo "on Debian: apt-get install python3-venv" >&2; exit 1; }
	@awk '/^uv==/ { on = 1 } on { print } on && !/\\$$/ { if (/^ *--hash/) exit }' requirements.lock > .venv/uv.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt
	@VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip sync --quiet --require-hashes requirements.lock
	@VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --no-deps --no-build-isolation $(addprefix -e ,$(MEMBERS))
	@touch $@

## setup: .venv with everything pinned in requirements.lock
.PHONY: setup
setup: .venv/.ready

## demo: the whole product on this machine: a real file, a relay killed mid-job, the result (under a minute)
.PHONY: demo
demo: .venv/.ready
	@$(BIN)/relayq demo

## example/documents: this repository's pages through a pipeline with a real embedding model (about 120 MB, in .venv-example)
.PHONY: example/documents
example/documents: .venv/.ready .venv-example/.ready
	@$(BIN)/python examples/documents/run.py --python .venv-example/bin/python

.venv-example/.ready: examples/documents/requirements.txt
	@$(PYTHON) -m venv .venv-example
	@.venv-example/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

## dev: gateway, reaper, mock model and a relay per job on this machine, until Ctrl-C
.PHONY: dev
dev: .venv/.ready
	@$(BIN)/relayq dev

## test: everything that needs no docker
.PHONY: test
test: .venv/.ready tools/versitygw
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal

## test/quick: the same without the tests over 10 s
.PHONY: test/quick
test/quick: .venv/.ready
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal -m "not slow"

## coverage: test with branch coverage of queuecore and the services
.PHONY: coverage
coverage: .venv/.ready tools/versitygw
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

## lint: ruff, shell, YAML and links; changes nothing
.PHONY: lint
lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/yamllint --strict -c .yamllint.yaml .
	@if command -v shellcheck >/dev/null; then shellcheck $$(git ls-files '*.sh' .ci/run); else echo "shellcheck is not installed: shell scripts were not looked at"; [ "$${CI:-}" != true ]; fi

## fmt: ruff's fixes and format
.PHONY: fmt
fmt: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## types: basedpyright, strict, over sources and tests
.PHONY: types
types: .venv/.ready
	$(BIN)/basedpyright

## imports: who may import whom; what is imported is declared
.PHONY: imports
imports: .venv/.ready
	$(BIN)/lint-imports --no-logo
	@for member in $(MEMBERS); do ( cd $$member && $(CURDIR)/$(BIN)/deptry src ) || exit 1; done

## generate: write every generated page and table
.PHONY: generate
generate: .venv/.ready
	$(BIN)/python tools/generate.py
	$(BIN)/python charts/generate.py

## verify: say whether every generated page, and the lock, is current
.PHONY: verify
verify: .venv/.ready
	$(BIN)/python tools/generate.py --check
	$(BIN)/python charts/generate.py --verify
	sh tools/lock.sh --check

## lock: write requirements.lock anew
.PHONY: lock
lock: .venv/.ready
	sh tools/lock.sh

## chart: lint, unit tests, schema and manifests of the Helm chart
.PHONY: chart
chart: .venv/.ready
	sh charts/check.sh

## e2e/k8s: the chart in a cluster with KEDA: scale from zero, kill, upgrade, uninstall (tests/e2e_k8s says what it needs)
.PHONY: e2e/k8s
e2e/k8s: .venv/.ready
	E2E_K8S=1 $(BIN)/pytest -v -rP tests/e2e_k8s

## bench: the benchmark table (docs/benchmarks.md says what it measures)
.PHONY: bench
bench: .venv/.ready
	$(BIN)/python benchmarks/run.py $(ARGS)

.PHONY: tools/versitygw
tools/versitygw:
	@. .ci/tools.sh; tool_versitygw || [ "$${CI:-}" != true ]

## ci: all of it, in the order that fails fastest
.PHONY: ci
ci: lint types imports verify test chart e2e

## clean: remove what the targets made
.PHONY: clean
clean:
	rm -rf .venv .tools .pytest_cache .ruff_cache .hypothesis .coverage* htmlcov artifacts
