# Every service's image:  docker build --build-arg SERVICE=gateway -t relayq/gateway .
#
#   builder    the service and its own runtime dependencies, pinned and hash-checked by requirements.lock
#   runtime    the base image and that virtual environment, nothing else
#   <service>  how the service is started and asked how it is
#
# Images run as user 10001, need no writable root file system and write nothing but their logs to stdout.

ARG PYTHON_IMAGE=python:3.12-slim
ARG SERVICE=gateway


FROM ${PYTHON_IMAGE} AS builder
ARG SERVICE
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    UV_LINK_MODE=copy \
    UV_PYTHON_DOWNLOADS=never
WORKDIR /src

COPY requirements.lock ./
RUN sed -n '/^uv==/,/^    # via/p' requirements.lock > uv.txt \
 && pip install --quiet --require-hashes --no-deps --requirement uv.txt

COPY libs libs
COPY services/${SERVICE} services/${SERVICE}
COPY deploy/probe.py deploy/probe.py
# uv checks the hashes of constraints; what is installed without a pin (a dependency that the lock has not seen) fails here.
RUN --mount=type=cache,target=/root/.cache/uv \
    case "${SERVICE}" in \
      gateway) members="./libs/queuecore[tracing] ./services/gateway" ;; \
      relay) members="./libs/queuecore[tracing] ./libs/client ./services/relay" ;; \
      reaper) members="./libs/queuecore ./services/reaper" ;; \
      mock-inference) members="./services/mock-inference" ;; \
      *) echo "SERVICE: gateway, relay, reaper or mock-inference" >&2; exit 1 ;; \
    esac \
 && uv venv --quiet /opt/relayq \
 && uv pip install --quiet --python /opt/relayq \
      --constraint requirements.lock --build-constraint requirements.lock dumb-init ${members} \
 && uv pip freeze --quiet --python /opt/relayq | grep -v ' @ file:' > installed.txt \
 && sed -n 's/^\([a-z0-9][^ ;]*==[^ ;]*\).*/\1/p' requirements.lock > pinned.txt \
 && if grep -vxFf pinned.txt installed.txt; then echo "not in requirements.lock" >&2; exit 1; fi

# Bytecode of the packages, and of as much of the standard library as starting the service, its probe and its tracing
# reads: the base image has none, and a read-only container would compile the same modules at every start (1.3 s against
# 0.4 s).
ENV PYTHONPYCACHEPREFIX=/opt/relayq/pycache
RUN install -m 0644 deploy/probe.py /opt/relayq/bin/probe.py \
 && /opt/relayq/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/relayq/lib \
 && module=$(echo "${SERVICE}" | tr - _) \
 && /opt/relayq/bin/python -c "import http.client, ${module}.__main__" \
 && case "${SERVICE}" in gateway | relay) /opt/relayq/bin/python -c "import queuecore.telemetry.otlp" ;; esac \
 && mkdir /data


FROM ${PYTHON_IMAGE} AS runtime
COPY --from=builder /opt/relayq /opt/relayq
# For BLOBS_URL=file:///data: a new volume takes its owner from here.
COPY --from=builder --chown=10001:10001 /data /data
ENV PATH=/opt/relayq/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPYCACHEPREFIX=/opt/relayq/pycache \
    PYTHONUNBUFFERED=1
WORKDIR /opt/relayq
USER 10001:10001
# PID 1 without handlers ignores signals; dumb-init passes them on from the first instant and reaps orphans.
ENTRYPOINT ["dumb-init", "--single-child", "--"]


FROM runtime AS gateway
ENV GATEWAY_HOST=0.0.0.0 GATEWAY_METRICS_HOST=0.0.0.0
EXPOSE 8080 8081 9101
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --start-interval=500ms \
  CMD ["python", "/opt/relayq/bin/probe.py", "GATEWAY_METRICS_PORT", "9101", "/health/ready"]
CMD ["python", "-m", "gateway"]

# No HEALTHCHECK: its process lives for one job, and the lease in Redis says whether it is alive.
FROM runtime AS relay
ENV RELAY_METRICS_HOST=0.0.0.0
EXPOSE 9102
CMD ["python", "-m", "relay"]

FROM runtime AS reaper
ENV REAPER_METRICS_HOST=0.0.0.0
EXPOSE 9103
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --start-interval=500ms \
  CMD ["python", "/opt/relayq/bin/probe.py", "REAPER_METRICS_PORT", "9103", "/health/ready"]
CMD ["python", "-m", "reaper"]

FROM runtime AS mock-inference
EXPOSE 9000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --start-interval=500ms \
  CMD ["python", "/opt/relayq/bin/probe.py", "MOCK_PORT", "9000", "/health"]
CMD ["python", "-m", "mock_inference"]


FROM ${SERVICE}
ARG SERVICE
ARG PYTHON_IMAGE
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="relayq ${SERVICE}" \
      org.opencontainers.image.description="Durable asynchronous inference queue on Redis: ${SERVICE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
