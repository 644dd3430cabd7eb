"""``python -m gateway``: the public port, the admin port, and metrics, in one process."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack
from importlib.metadata import version

import uvloop

from gateway.app import Gateway, brokers_of, build, check_server
from gateway.listener import Listener
from gateway.settings import GatewaySettings
from queuecore import service
from queuecore.clock import sleep
from queuecore.config import load_config
from queuecore.errors import ConfigurationError
from queuecore.redis import open_redis
from queuecore.settings import CommonSettings, read_settings
from queuecore.storage import open_store
from queuecore.telemetry import endpoint, logs, metrics
from queuecore.telemetry.names import Event
from queuecore.telemetry.tracing import Tracer

_log = logging.getLogger("gateway")

_LAST_ANSWERS_SECONDS = 5.0
_LAST_SPANS_SECONDS = 2.0


def main() -> int:
    """Run until SIGTERM or until a background task ends; the exit code."""
    logs.configure("gateway", "INFO", "json")
    try:
        common = read_settings(CommonSettings, os.environ)
        settings = read_settings(GatewaySettings, os.environ)
        logs.configure("gateway", common.log_level, common.log_format)
        return uvloop.run(_run(common, settings))
    except ConfigurationError as error:
        _log.error("%s", error, extra={"event": Event.CONFIGURATION_REFUSED})
        return 1


async def _run(common: CommonSettings, settings: GatewaySettings) -> int:
    stop = service.stop_event()
    config = load_config(common.models_file)
    tracer = Tracer("gateway", common.otel_exporter_otlp_endpoint)
    tracer.load()
    async with AsyncExitStack() as stack:
        _ = stack.callback(tracer.close, _LAST_SPANS_SECONDS)
        queue = await open_redis(common, name="gateway")
        _ = stack.push_async_callback(queue.aclose)
        background = await open_redis(common, name="gateway-outbox")
        _ = stack.push_async_callback(background.aclose)
        brokers = brokers_of(config, queue.broker)
        await check_server(queue.server)
        store = await open_store(common)
        _ = stack.push_async_callback(store.aclose)
        outboxes = brokers_of(config, background.broker)
        gateway = build(settings, config, queue, brokers, store, outboxes=outboxes, tracer=tracer)
        _ = stack.push_async_callback(gateway.tasks.stop)
        return await _serve(settings, gateway, stop)


async def _serve(settings: GatewaySettings, gateway: Gateway, stop: asyncio.Event) -> int:
    public = Listener(
        gateway.public, settings.host, settings.port, what="the public port", drain_seconds=settings.drain_seconds
    )
    admin = Listener(
        gateway.admin, settings.admin_host, settings.admin_port, what="the admin port",
        drain_seconds=min(settings.drain_seconds, _LAST_ANSWERS_SECONDS),
    )  # fmt: skip
    metrics.BUILD_INFO.labels("gateway", version("relayq-gateway")).set(1)
    probes = endpoint.serve(settings.metrics_host, settings.metrics_port, gateway.edge.health.probe)
    serving = [asyncio.create_task(listener.listen()) for listener in (public, admin)]
    _log.info(
        "gateway started", extra={"event": Event.SERVICE_STARTED, "port": public.port, "admin_port": admin.port,
                                  "metrics_port": probes.port, "auth": settings.auth},
    )  # fmt: skip
    ends = asyncio.create_task(gateway.tasks.first_end())
    stopping = asyncio.create_task(stop.wait())
    _ = await asyncio.wait({ends, stopping, *serving}, return_when=asyncio.FIRST_COMPLETED)
    failed = not stopping.done()
    if ends.done():
        task = ends.result()
        _log.error(
            "the task %s ended", task.get_name(), exc_info=task.exception(), extra={"event": Event.SERVICE_FAILED}
        )
    gateway.edge.health.draining = True
    if not failed:
        await sleep(settings.shutdown_delay_seconds)
    gateway.edge.waiters.close()
    for listener in (public, admin):
        listener.stop()
    _ = stopping.cancel(), ends.cancel()
    _ = await asyncio.gather(*serving)
    probes.close()
    _log.info("gateway stopped", extra={"event": Event.SERVICE_STOPPED})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
