"""The process around the loop: settings, connections, the liveness thread, what is loaded late, the exit code."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NoReturn

import uvloop

from queuecore.blobs import BlobStore
from queuecore.config import ModelConfig, load_config
from queuecore.errors import BlobUnavailable, BrokerUnavailable, ConfigurationError, OutcomeUnknown
from queuecore.gates import Gate
from queuecore.redis import open_redis
from queuecore.service import stop_event
from queuecore.settings import CommonSettings, read_settings
from queuecore.telemetry import logs
from queuecore.telemetry.names import Event
from queuecore.telemetry.tracing import Tracer
from relay.attempt import ExitCode
from relay.health import Vitals
from relay.liveness import Keeper, LivenessThread
from relay.loop import Relay
from relay.progress import Progress
from relay.readiness import ModelNotReady
from relay.settings import RelaySettings
from relay.tally import Tally

# What a run needs and the first claim does not: loaded in a thread while the model gets ready or the pop waits.
_LATE_MODULES: Final = ("queuecore.storage", "relay.run")
_LAST_SPANS_SECONDS: Final = 1.5  # what a dead collector may cost at the end; the verdict is out by then
_log = logging.getLogger(__name__)


def main() -> NoReturn:
    """Run one relay and end the process."""
    code = ExitCode.COULD_NOT_WORK
    try:
        logs.configure("relay", "INFO", "json")
        code = uvloop.new_event_loop().run_until_complete(serve(os.environ))
        _log.info("ending", extra={"event": Event.SERVICE_STOPPED, "exit_code": int(code)})
    except ConfigurationError as error:
        _log.error("%s", error, extra={"event": Event.CONFIGURATION_REFUSED})
    except (ModelNotReady, BrokerUnavailable, OutcomeUnknown) as error:
        _log.error("%s", error, extra={"event": Event.SERVICE_FAILED})
    except Exception:  # noqa: BLE001  the outermost frame
        _log.exception("a fault of the relay itself", extra={"event": Event.SERVICE_FAILED})
    # Every job is settled by now. The interpreter's own shutdown would add 60 to 100 ms to each.
    logging.shutdown()
    with suppress(OSError, ValueError):
        _ = sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)


async def serve(environ: Mapping[str, str]) -> ExitCode:
    """One relay, from its settings to its exit code; see ``Relay.run`` for what it raises."""
    stop = stop_event()
    settings, common = read_settings(RelaySettings, environ), read_settings(CommonSettings, environ)
    logs.configure("relay", common.log_level, common.log_format)
    model, gate = _model(settings, common)
    tally = Tally(settings.model)
    tracer = Tracer("relay", common.otel_exporter_otlp_endpoint, timeout_seconds=_LAST_SPANS_SECONDS)
    name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
    progress = Progress()

    async def open_keeper() -> Keeper:
        own = await open_redis(common, name=f"relayq-relay-liveness:{os.getpid()}")
        return Keeper(own.broker(settings.model, model), own.signals, tally)

    liveness = LivenessThread(open_keeper, progress.break_off)
    queue = await open_redis(common, name=f"relayq-relay:{os.getpid()}")
    late = _Late(settings, common, Vitals(progress, liveness), progress, tally, tracer=tracer)
    relay = Relay(
        settings,
        model,
        queue.broker(settings.model, model, gate),
        liveness,
        late.store,
        progress=progress,
        stop=stop,
        worker_name=name,
        tally=tally,
        tracer=tracer,
    )
    _log.info("started", extra={"event": Event.SERVICE_STARTED, "model": settings.model, "worker": name})
    try:
        return await relay.run()
    finally:
        tracer.close(_LAST_SPANS_SECONDS)


def _model(settings: RelaySettings, common: CommonSettings) -> tuple[ModelConfig, Gate | None]:
    config = load_config(common.models_file)
    models = config.models
    if settings.model not in models:
        raise ConfigurationError(f"RELAY_MODEL: {settings.model!r} is not in {common.models_file}: {', '.join(models)}")
    if not common.blobs_url:
        raise ConfigurationError("BLOBS_URL: required; s3://bucket/prefix or file:///dir")
    return models[settings.model], config.gate(settings.model)


class _Late:
    """What is loaded while the model gets ready or the pop waits."""

    def __init__(
        self,
        settings: RelaySettings,
        common: CommonSettings,
        vitals: Vitals,
        progress: Progress,
        tally: Tally,
        *,
        tracer: Tracer,
    ) -> None:
        self._settings = settings
        self._common = common
        self._vitals = vitals
        self._progress = progress
        self._tally = tally
        self._tracer = tracer
        self._rest: asyncio.Task[None] | None = None

    async def store(self) -> BlobStore:
        """The store, and what a run imports; the store's client and the endpoint for metrics follow by themselves."""
        for name in _LATE_MODULES:
            _ = await asyncio.to_thread(importlib.import_module, name)
        from queuecore.storage import open_store  # noqa: PLC0415  just loaded

        store = await open_store(self._common)
        self._rest = asyncio.create_task(self._load_rest(store))
        self._rest.add_done_callback(self._look_at_rest)
        return store

    async def _load_rest(self, store: BlobStore) -> None:
        with suppress(BlobUnavailable):  # the first call tries again, and says more
            await store.connect()
        if self._settings.metrics_port:
            await asyncio.to_thread(self._start_endpoint)
        await asyncio.to_thread(self._tracer.load)

    def _start_endpoint(self) -> None:
        from queuecore.telemetry.endpoint import serve as listen  # noqa: PLC0415  not needed before the first claim

        try:
            _ = listen(self._settings.metrics_host, self._settings.metrics_port, self._vitals.health)
        except ConfigurationError as error:
            # Many relays may share a machine, and the first has the port; gateway and reaper count their verdicts.
            _log.warning("%s", error, extra={"event": Event.CONFIGURATION_REFUSED})
        else:
            self._tally.publish()

    def _look_at_rest(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._progress.break_off(error)
