"""One claimed job: run it, watch what may end the run, report the verdict."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from enum import Enum, IntEnum, auto
from typing import Final, NamedTuple

from queuecore.blobs import BlobStore
from queuecore.broker import Breaker, Broker, Claim, Failure, Result
from queuecore.clock import monotonic
from queuecore.config import Retries
from queuecore.errors import ClaimLost
from queuecore.job import Status
from queuecore.telemetry import logs
from queuecore.telemetry.names import Event
from queuecore.telemetry.tracing import Operation
from relay.failure import RunFailed, verdict
from relay.link import Address
from relay.liveness import Listener, Liveness
from relay.patience import until_answered
from relay.tally import Tally
from relay.trace import Trace

RELEASE_SECONDS: Final = 5.0
_TIDY_SECONDS: Final = 10.0
# How long a result or a verdict waits for a store or a Redis that does not answer. Longer than any outage after which
# the claim could still be current, so that finished work is not thrown away (case A7); then others take the job.
_PATIENCE_LEASES: Final = 3
_LEAST_PATIENCE_SECONDS: Final = 10.0
_EVENTS: Final = {
    Status.COMPLETED: Event.JOB_COMPLETED,
    Status.FAILED: Event.JOB_FAILED,
    Status.CANCELLED: Event.JOB_CANCELLED,
    Status.PENDING: Event.JOB_RETRIED,
}
_SAID: Final = {
    "released": ("gave the job back", Event.JOB_RELEASED),
    "advanced": ("the run stands in its next stage", Event.STAGE_COMPLETED),
}
_log = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """What the process ends with."""

    DONE = 0  # a verdict of whatever kind, an empty queue, SIGTERM
    COULD_NOT_WORK = 1
    CLAIM_LOST = 3


class End(Enum):
    """What ended a run before its own end, in the order of precedence."""

    LOST = auto()
    CANCELLED = auto()
    GIVEN_BACK = auto()
    TIMEOUT = auto()


class Limits(NamedTuple):
    """What bounds the runs of one model."""

    execution_seconds: float
    retries: Retries
    breaker: Breaker


class Attempt:
    """The life of one claim in this process.

    ``give_back`` are futures that end the run when done: the drain time is over, or the process is broken.
    """

    def __init__(
        self,
        claim: Claim,
        broker: Broker,
        liveness: Liveness,
        limits: Limits,
        tally: Tally,
        *,
        trace: Trace,
        give_back: set[asyncio.Future[None]],
    ) -> None:
        self._claim = claim
        self._broker = broker
        self._liveness = liveness
        self._limits = limits
        self._tally = tally
        self._trace = trace
        self._give_back = give_back
        self._began = monotonic()
        self._patience_seconds = max(_LEAST_PATIENCE_SECONDS, _PATIENCE_LEASES * broker.limits.lease_ms / 1000)
        self.model_failed = False  # worth another look at /health

    async def finish(self, store: Awaitable[BlobStore], address: Address) -> ExitCode:
        """Run the job and report how it ended.

        Raises:
            BrokerUnavailable, OutcomeUnknown: the verdict could not be reported; the lease will run out.
        """
        outside: asyncio.Future[End] = asyncio.get_running_loop().create_future()

        def end(why: End) -> Callable[[], None]:
            return lambda: None if outside.done() else outside.set_result(why)

        self._liveness.hold(self._claim, Listener(cancelled=end(End.CANCELLED), lost=end(End.LOST)))
        with self._followed():
            try:
                outcome = await self._outcome(store, address, outside)
                return await self._report(outcome)
            finally:
                self._liveness.let_go()

    async def release(self) -> ExitCode:
        """Give the job back without having begun it."""
        with self._followed():
            return await self._report(End.GIVEN_BACK)

    @contextmanager
    def _followed(self) -> Generator[None, None, None]:
        """Whatever is logged in here names the job; when it ends, so does the span of the run."""
        with logs.bound(job_id=self._claim.job_id, trace_id=self._trace.submission_id), self._trace.run:
            yield

    # -- run ----------------------------------------------------------------------------------------------------

    async def _outcome(
        self, store: Awaitable[BlobStore], address: Address, outside: asyncio.Future[End]
    ) -> Result | Failure | End:
        limit_seconds = self._limit_seconds()
        try:
            outcome = await self._run(store, address, outside, limit_seconds)
        except RunFailed as error:
            self.model_failed = error.code.startswith("inference")
            return self._failure(error)
        match outcome:
            case End.TIMEOUT:
                return self._failure(RunFailed("execution_timeout", f"the run was not over within {limit_seconds:g} s"))
            case End.CANCELLED:
                return Failure("cancelled", "cancelled while it ran")
            case _:
                return outcome

    def _failure(self, error: RunFailed) -> Failure:
        limits, run_seconds = self._limits, monotonic() - self._began
        return verdict(error, self._claim.record, limits.retries, limits.breaker, run_seconds=run_seconds)

    async def _run(
        self, store: Awaitable[BlobStore], address: Address, outside: asyncio.Future[End], limit_seconds: float
    ) -> Result | End:
        from relay.run import Run  # noqa: PLC0415  not needed before the first claim

        claim = self._claim
        run = Run(
            self._trace.handed_on(),
            store,
            address,
            report=lambda progress: self._broker.report(claim, progress),
            patience_seconds=self._patience_seconds,
        )
        task = asyncio.create_task(run.result())
        _ = await asyncio.wait(
            {task, outside, *self._give_back}, timeout=limit_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if task.done():
            return task.result()
        run.hang_up()
        _ = task.cancel()
        _ = await asyncio.wait({task}, timeout=_TIDY_SECONDS)
        if outside.done():
            return outside.result()
        return End.GIVEN_BACK if any(future.done() for future in self._give_back) else End.TIMEOUT

    def _limit_seconds(self) -> float:
        """From the claim's times, both the server's clock; ours only counts from here."""
        record = self._claim.record
        if record.execute_until is None or record.started_at is None:
            return self._limits.execution_seconds
        return (record.execute_until - record.started_at) / 1000

    # -- report -------------------------------------------------------------------------------------------------

    async def _report(self, outcome: Result | Failure | End) -> ExitCode:
        claim = self._claim
        if isinstance(outcome, Failure):
            self._trace.run.fail(outcome.code)
        match outcome:
            case Result():
                return await self._tell("complete", lambda: self._broker.complete(claim, outcome), outcome)
            case Failure():
                return await self._tell("fail", lambda: self._broker.fail(claim, outcome), outcome)
            case End.LOST:
                return self._lost("renew")
            case _:
                return await self._tell("release", lambda: self._broker.release(claim), None)

    async def _tell(
        self, verb: Operation, call: Callable[[], Awaitable[Status]], outcome: Result | Failure | None
    ) -> ExitCode:
        """Report until it is known to be recorded, or refused, or pointless."""

        async def told() -> Status:
            with self._trace.verdict(verb):
                return await until_answered(call, within_seconds=self._patience_seconds)

        task = asyncio.create_task(told())
        _ = await asyncio.wait({task, *self._give_back}, return_when=asyncio.FIRST_COMPLETED)
        _ = await asyncio.wait({task}, timeout=RELEASE_SECONDS)
        if not task.done():
            _ = task.cancel()
            _log.warning(
                "Redis did not answer before the end; the reaper takes the job back",
                extra={"event": Event.CONNECTION_LOST, **self._fields(), "verb": verb},
            )
            return ExitCode.DONE
        try:
            status = task.result()
        except ClaimLost:
            return self._lost(verb)
        kept_on = (
            {"release": "released", "complete": "advanced"}.get(verb, status) if status is Status.PENDING else status
        )
        self._tally.count("RUNS", kept_on)
        self._trace.run.set("relayq.status", str(status))
        _log.info(
            _SAID.get(kept_on, (f"the job is {status}", _EVENTS[status]))[0],
            extra={
                "event": _SAID.get(kept_on, ("", _EVENTS[status]))[1],
                **self._fields(),
                **_details(outcome),
                "seconds": round(monotonic() - self._began, 3),
            },
        )
        return ExitCode.DONE

    def _lost(self, verb: str) -> ExitCode:
        self._tally.count("RUNS", "lost")
        self._trace.run.fail(ClaimLost.code)
        self._tally.count("FENCED_REFUSALS", verb)
        _log.warning(
            "the claim is somebody else's now; nothing was written",
            extra={"event": Event.CLAIM_LOST, **self._fields(), "verb": verb},
        )
        return ExitCode.CLAIM_LOST

    def _fields(self) -> dict[str, object]:
        claim = self._claim
        return {
            "job_id": claim.job_id,
            "attempt": claim.record.claims,
            "fence": claim.fence,
            "claim_id": claim.claim_id,
        }


def _details(outcome: Result | Failure | None) -> dict[str, object]:
    """What a log line may say about an outcome. Not the failure's message: it quotes the model."""
    match outcome:
        case Result():
            return {"result_bytes": outcome.size}
        case Failure():
            return {
                "error_code": outcome.code, "http_status": outcome.http_status, "retry_in_ms": outcome.retry_in_ms
            }  # fmt: skip
        case None:
            return {}
