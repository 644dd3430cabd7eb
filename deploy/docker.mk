# Targets that need a Docker engine; the root Makefile includes this file.
#
#   images   build every image            up     start the product, wait until it is healthy, say what to do next
#   down     stop it, keep the data       logs   follow every log
#   e2e      kill containers and prove that nothing is lost; E2E_SOAK_JOBS=500 E2E_SOAK_SECONDS=60 shorten its soak

SERVICES := gateway reaper relay mock-inference
VERSION ?= dev
REVISION := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

.PHONY: images up down logs e2e e2e/down

images:
	@for service in $(SERVICES); do \
	  docker build --quiet --build-arg SERVICE=$$service --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) \
	    --tag relayq/$$service:$(VERSION) . || exit 1; \
	done
	@docker build --quiet --tag relayq/edge:$(VERSION) deploy/edge
	@docker images --filter reference='relayq/*:$(VERSION)'

up: setup
	@python3 deploy/prepare.py
	docker compose up --detach --build --wait --wait-timeout 180
	@port=$$(docker compose port edge 8080) && echo "relayq is ready. A result in one command:" && \
	  echo "  .venv/bin/relayq submit README.md --wait --url http://$$port"

down:
	@python3 deploy/prepare.py
	docker compose --profile monitoring down --remove-orphans

logs:
	docker compose logs --follow --tail 100

e2e: setup
	.venv/bin/pytest tests/e2e --timeout 900 --durations 10

e2e/down:
	docker compose --project-name relayq-e2e down --volumes --remove-orphans --timeout 5
