"""Phase 0: processing entries whose lease is over go back to the queue, to the dead letters, or away."""

from __future__ import annotations

import logging
from typing import Final

from queuecore.broker import Broker, Reaped
from queuecore.clock import monotonic
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event
from reaper.grace import RestartGrace

SORTED: Final = ("deadline", "priority", "stage")  # the orders of a sorted set, and a stage's
COUNTED: Final = ("requeued", "deadletter", "dropped")
_LEVELS: Final = {"deadletter": logging.ERROR, "requeued": logging.WARNING}

_log = logging.getLogger(__name__)


class Pace:
    """A sorted set's leases are looked at every ``claim_reclaim_interval_ms``, where our interval is shorter."""

    def __init__(self) -> None:
        self._looked: dict[str, float] = {}

    def due(self, broker: Broker, now: float) -> bool:
        """Whether this queue's turn has come; if so, it is noted."""
        before = self._looked.get(broker.model)
        if before is not None and 1000 * (now - before) < broker.limits.reclaim_interval_ms:
            return False
        self._looked[broker.model] = now
        return True


async def reap(broker: Broker, grace: RestartGrace, pace: Pace | None = None) -> None:
    """One look at every processing entry, unless the model is in its restart grace or not due yet."""
    if not grace.begun(broker.model) and grace.witness:
        owned = await broker.owners()
        if grace.begin(broker.model, {claim.client for claim in owned}, monotonic()):
            _log.warning(
                "claims older than this server's run: nothing is reaped for one lease",
                extra={"event": Event.GRACE_STARTED, "model": broker.model},
            )
    held = grace.holds(broker.model, monotonic())
    metrics.REAP_HELD.labels(broker.model).set(held)
    if held or (pace is not None and not pace.due(broker, monotonic())):
        return
    for reaped in await broker.reap():
        note(broker, reaped, "its lease is over")


def note(broker: Broker, reaped: Reaped, cause: str) -> None:
    """Count and log one outcome; entries left alone are not worth a line."""
    model = broker.model
    fields = {"model": model, "job_id": reaped.job_id, "outcome": reaped.outcome, "cause": cause}
    if reaped.outcome == "requeued" and broker.limits.order in SORTED:
        metrics.CLAIMS_EXPIRED.labels(model).inc()
    if reaped.outcome in COUNTED:
        metrics.JOBS_REAPED.labels(model, reaped.outcome).inc()
    if reaped.outcome in {*COUNTED, "cancelled", "adopted"}:
        level = _LEVELS.get(reaped.outcome, logging.INFO)
        _log.log(level, "a claim was taken back", extra={"event": Event.JOB_REAPED} | fields)
