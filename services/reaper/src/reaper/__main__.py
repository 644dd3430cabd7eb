"""``python -m reaper``: read the settings, run until SIGTERM. Exit code 0 then, 1 when it could not do its work."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence

from queuecore.broker import Broker
from queuecore.config import Config, load_config
from queuecore.errors import BrokerError, ConfigurationError
from queuecore.redis import RedisQueue, open_redis
from queuecore.service import stop_event
from queuecore.settings import CommonSettings, read_settings
from queuecore.storage import open_store
from queuecore.telemetry import endpoint, logs
from queuecore.telemetry.names import Event
from reaper.settings import ReaperSettings
from reaper.upkeep import Upkeep

_log = logging.getLogger("reaper")


def main(environ: Mapping[str, str]) -> int:
    """The exit code."""
    logs.configure("reaper", "INFO", "json")
    try:
        common = read_settings(CommonSettings, environ)
        logs.configure("reaper", common.log_level, common.log_format)
        settings = read_settings(ReaperSettings, environ)
        config = load_config(common.models_file)
        return asyncio.run(_run(settings, common, config))
    except ConfigurationError as error:
        _log.error("%s", error, extra={"event": Event.CONFIGURATION_REFUSED})
    except Exception:  # noqa: BLE001  the outermost frame: whatever ends the process is said and gives exit code 1
        _log.exception("the reaper ends", extra={"event": Event.SERVICE_FAILED})
    return 1


async def _run(settings: ReaperSettings, common: CommonSettings, config: Config) -> int:
    stop = stop_event()
    if not settings.enabled:
        return await _idle(settings, stop)
    queue = await open_redis(common, name="relayq-reaper")
    try:
        store = await open_store(common)
        try:
            brokers = [queue.broker(name, model) for name, model in config.models.items()]
            brokers += await _forgotten(queue, config)
            upkeep = Upkeep(settings, brokers, server=queue.server, signals=queue.signals, store=store)
            listening = endpoint.serve(settings.metrics_host, settings.metrics_port, upkeep.health)
            _started(listening.port, models=[broker.model for broker in brokers])
            try:
                await upkeep.run(stop)
            finally:
                listening.close()
        finally:
            await store.aclose()
    finally:
        await queue.aclose()
    _log.info("stopped", extra={"event": Event.SERVICE_STOPPED})
    return 0


async def _forgotten(queue: RedisQueue, config: Config) -> Sequence[Broker]:
    """Queues whose model left the configuration with jobs in them; none when Redis does not answer yet."""
    try:
        found = await queue.forgotten(config)
    except BrokerError as error:
        _log.warning("removed models were not looked for: %s", error, extra={"event": Event.QUEUE_FORGOTTEN})
        return []
    for broker in found:
        _log.warning(
            "a model that is not in models.yaml has jobs left: its claims are looked after",
            extra={"event": Event.QUEUE_FORGOTTEN, "model": broker.model},
        )
    return found


async def _idle(settings: ReaperSettings, stop: asyncio.Event) -> int:
    detail = {"reaper": "switched off (REAPER_ENABLED=false): nothing is reaped"}
    listening = endpoint.serve(
        settings.metrics_host, settings.metrics_port, lambda: endpoint.Health(live=True, ready=True, detail=detail)
    )
    _started(listening.port, models=[])
    _log.warning("switched off by REAPER_ENABLED=false: nothing is reaped", extra={"event": Event.SERVICE_STARTED})
    _ = await stop.wait()
    listening.close()
    _log.info("stopped", extra={"event": Event.SERVICE_STOPPED})
    return 0


def _started(port: int, *, models: list[str]) -> None:
    from importlib.metadata import version  # noqa: PLC0415  read once

    from queuecore.telemetry import metrics  # noqa: PLC0415

    metrics.BUILD_INFO.labels("reaper", version("relayq-reaper")).set(1)
    _log.info("started", extra={"event": Event.SERVICE_STARTED, "metrics_port": port, "models": models})


if __name__ == "__main__":
    sys.exit(main(os.environ))
