"""Phase 6: live jobs that stand in no structure come back; what a recipe, a fault or a lost step took away."""

from __future__ import annotations

import logging
from typing import Final

from queuecore.broker import Broker
from queuecore.clock import monotonic
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event
from reaper.grace import RestartGrace

OUTCOMES: Final = ("requeued", "deadletter", "cancelled")

_log = logging.getLogger(__name__)


async def reconcile(broker: Broker, grace: RestartGrace) -> None:
    """One look at the next part of the index; not in a restart grace, for it judges leases too."""
    if grace.holds(broker.model, monotonic()):
        return
    for found in await broker.reconcile():
        if found.outcome in OUTCOMES:
            metrics.RECONCILED.labels(broker.model, found.outcome).inc()
            fields = {"event": Event.JOB_RECONCILED, "model": broker.model, "job_id": found.job_id}
            _log.warning("a job that stood nowhere was brought back", extra=fields | {"outcome": found.outcome})
