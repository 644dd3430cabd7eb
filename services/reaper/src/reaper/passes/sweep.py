"""Phase 3: queue entries whose record is gone leave pending and processing: depths and scalers see the truth."""

from __future__ import annotations

import logging

from queuecore.broker import Broker
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)


async def sweep(broker: Broker) -> None:
    """Remove what leads nowhere."""
    for job_id, state in await broker.sweep():
        metrics.ORPHANS_SWEPT.labels(broker.model, state).inc()
        fields = {"event": Event.JOB_DROPPED, "model": broker.model, "job_id": job_id, "state": state}
        _log.info("a queue entry without a record was removed", extra=fields)
