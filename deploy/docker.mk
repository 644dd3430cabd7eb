# Targets that need a Docker engine; the root Makefile includes this file.

SERVICES := gateway reaper relay mock-inference
VERSION ?= dev
REVISION := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

## images: build every image
.PHONY: images
images:
	@for service in $(SERVICES); do \
	  docker build --quiet --build-arg SERVICE=$$service --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) \
	    --tag relayq/$$service:$(VERSION) . || exit 1; \
	done
	@docker build --quiet --tag relayq/edge:$(VERSION) deploy/edge
	@docker images --filter reference='relayq/*:$(VERSION)'

## up: the product in containers on 127.0.0.1:8080, and a command that gives a result
.PHONY: up
up: setup
	@python3 deploy/prepare.py
	docker compose up --detach --build --wait --wait-timeout 180
	@port=$$(docker compose port edge 8080) && echo "relayq is ready. A result in one command:" && \
	  echo "  .venv/bin/relayq submit README.md --wait --url http://$$port"

## down: stop it; the data stay
.PHONY: down
down:
	@python3 deploy/prepare.py
	docker compose --profile monitoring down --remove-orphans

## logs: follow every container's log
.PHONY: logs
logs:
	docker compose logs --follow --tail 100

## e2e: kill containers and prove that nothing is lost (E2E_SOAK_JOBS=500 E2E_SOAK_SECONDS=60 shorten its soak)
.PHONY: e2e
e2e: setup
	.venv/bin/pytest tests/e2e --timeout 900 --durations 10

## e2e/down: remove what an interrupted e2e left
.PHONY: e2e/down
e2e/down:
	docker compose --project-name relayq-e2e down --volumes --remove-orphans --timeout 5
