"""From the first look at the queue to the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from queuecore.blobs import BlobStore
from queuecore.broker import Breaker, Broker, Claim, Worker
from queuecore.clock import monotonic, sleep, wall_ns
from queuecore.config import ModelConfig
from queuecore.names import new_claim_id
from queuecore.telemetry import logs
from queuecore.telemetry.names import Event
from queuecore.telemetry.tracing import Tracer, trace_id
from relay.attempt import Attempt, ExitCode, Limits
from relay.link import Address
from relay.liveness import Liveness
from relay.patience import until_answered
from relay.progress import Progress
from relay.readiness import wait_until_ready
from relay.settings import RelaySettings
from relay.tally import Tally
from relay.trace import Trace

BROKEN_SECONDS: Final = 60.0  # Redis unreachable for so long while nothing is claimed: end, and let others decide
_SUBSCRIBED_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 5.0
_QUIET_SECONDS: Final = 0.05
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Relay:
    """One relay process: claims a job, runs it, reports the verdict, up to ``settings.max_jobs`` times.

    ``prepare`` loads what the first claim does not need and gives the store; it is called once, while the model gets
    ready or the pop waits. ``stop`` is what SIGTERM sets.
    """

    def __init__(
        self,
        settings: RelaySettings,
        config: ModelConfig,
        broker: Broker,
        liveness: Liveness,
        prepare: Callable[[], Coroutine[Any, Any, BlobStore]],
        *,
        progress: Progress,
        stop: asyncio.Event,
        worker_name: str,
        tally: Tally,
        tracer: Tracer,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._liveness = liveness
        self._prepare = prepare
        self._progress = progress
        self._stop = stop
        self._worker_name = worker_name
        self._tally = tally
        self._tracer = tracer
        self._address = Address.parse(settings.inference_url)
        self._limits = Limits(
            config.execution_timeout_seconds or settings.execution_timeout_seconds,
            config.retries,
            Breaker(settings.breaker_failures, round(1000 * settings.breaker_cooldown_seconds)),
        )
        self._store: asyncio.Task[BlobStore] | None = None

    async def run(self) -> ExitCode:
        """Work until there is a reason to end.

        Raises:
            BrokerUnavailable, OutcomeUnknown: Redis was away for too long.
            ModelNotReady: the inference server never became ready.
            ConfigurationError: the store cannot be opened.
        """
        drained = asyncio.create_task(self._drain())
        try:
            code = await self._run(drained)
        finally:
            for task in filter(None, (drained, self._store)):
                _ = task.cancel()
        if self._progress.broken.done():
            self._progress.broken.result()
        return code

    async def _run(self, drained: asyncio.Task[None]) -> ExitCode:
        if self._settings.exit_when_empty and await self._unless_stopped(self._is_empty()):
            _log.info("no job waits or runs", extra={"event": Event.QUEUE_EMPTY})
            return ExitCode.DONE
        jobs = 0
        ready = False
        while not self._ending:
            if not ready:
                self._progress.enter("waiting for the model", serving=False)
                ready = bool(await self._unless_stopped(self._ready()))
                continue
            self._progress.enter("waiting for a job", serving=True)
            asked_ns = wall_ns()
            claim = await self._next_claim()
            if claim is None:
                break
            self._progress.enter("running a job", serving=True)
            attempt = Attempt(
                claim,
                self._broker,
                self._liveness,
                self._limits,
                self._tally,
                trace=Trace(self._tracer, claim, asked_ns),
                give_back={drained, self._progress.broken},
            )
            if self._ending:
                return await attempt.release()
            code = await attempt.finish(self._prepared(), self._address)
            jobs += 1
            if code is not ExitCode.DONE or jobs == self._settings.max_jobs:
                return code
            ready = not attempt.model_failed
        return ExitCode.DONE

    @property
    def _ending(self) -> bool:
        return self._stop.is_set() or self._progress.broken.done()

    async def _drain(self) -> None:
        _ = await self._stop.wait()
        _log.info("asked to stop", extra={"event": Event.DRAIN_STARTED, "phase": self._progress.phase})
        await sleep(self._settings.drain_seconds)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The work's value; None when the process is to end first, and then the work is cancelled."""
        task = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        try:
            _ = await asyncio.wait({task, stopping, self._progress.broken}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            _ = stopping.cancel()
            _ = task.cancel()
            _ = await asyncio.wait({task, stopping})

    # -- before a claim -----------------------------------------------------------------------------------------

    async def _is_empty(self) -> bool:
        counts = await until_answered(self._broker.counts, within_seconds=BROKEN_SECONDS)
        return counts.pending == counts.processing == 0

    async def _ready(self) -> bool:
        await wait_until_ready(
            self._settings.inference_url,
            within_seconds=self._settings.ready_timeout_seconds,
            waiting=self._begin_preparing,
        )
        _log.info("the model is ready", extra={"event": Event.INFERENCE_READY})
        return True

    def _begin_preparing(self) -> asyncio.Task[BlobStore]:
        if self._store is None:
            self._store = asyncio.create_task(self._prepare())
            self._store.add_done_callback(self._look_at_prepared)
        return self._store

    def _look_at_prepared(self, task: asyncio.Task[BlobStore]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._progress.break_off(error)

    async def _prepared(self) -> BlobStore:
        return await asyncio.shield(self._begin_preparing())

    # -- claim --------------------------------------------------------------------------------------------------

    async def _next_claim(self) -> Claim | None:
        """A job; None when none came in time or the process is to end."""
        # Without its client's id a claim is valid too; it is then registered by the first renewal.
        _ = await self._unless_stopped(self._liveness.connected(_SUBSCRIBED_SECONDS))
        if self._ending:
            return None
        waiting = asyncio.create_task(self._claim())
        stopping = asyncio.create_task(self._stop.wait())
        # The pop goes out first. What a run needs is loaded when it has been answered or is seen to wait.
        _ = await asyncio.wait({waiting, stopping}, timeout=_QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        _ = self._begin_preparing()
        _ = await asyncio.wait({waiting, stopping, self._progress.broken}, return_when=asyncio.FIRST_COMPLETED)
        _ = stopping.cancel()
        if not waiting.done() and not await self._interrupted(waiting):
            return None
        claim = waiting.result()
        if claim is not None:
            with logs.bound(trace_id=trace_id(claim.record.traceparent)):
                _log.info(
                    "claimed a job",
                    extra={
                        "event": Event.JOB_CLAIMED, "job_id": claim.job_id, "attempt": claim.record.claims,
                        "fence": claim.fence, "claim_id": claim.claim_id,
                    },
                )  # fmt: skip
        elif not self._ending:
            _log.info("no job came in time", extra={"event": Event.QUEUE_EMPTY})
        return claim

    async def _claim(self) -> Claim | None:
        claim_id = new_claim_id()
        wait_seconds = self._settings.queue_pop_timeout_seconds
        end = monotonic() + wait_seconds if wait_seconds else None

        async def claim() -> Claim | None:
            return await self._broker.claim(
                Worker(self._worker_name, self._liveness.client),
                claim_id,
                wait_seconds=None if end is None else max(0.0, end - monotonic()),
                execution_ms=round(1000 * self._limits.execution_seconds),
            )

        return await until_answered(claim, within_seconds=BROKEN_SECONDS)

    async def _interrupted(self, waiting: asyncio.Task[Claim | None]) -> bool:
        """Whether the pop has ended. While Redis answers it is never cancelled: it may be moving a job (case A2)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._broker.interrupt()
                _ = await asyncio.wait({waiting})
                return True
        _ = waiting.cancel()
        _ = await asyncio.wait({waiting})
        return False
