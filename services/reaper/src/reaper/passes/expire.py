"""Phase 1: jobs that waited past their deadline, or for longer than jobs may wait, expire."""

from __future__ import annotations

import logging

from queuecore.broker import Broker
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)


async def expire(broker: Broker) -> None:
    """Expire what is late."""
    for job_id in await broker.expire():
        metrics.EXPIRED.labels(broker.model).inc()
        fields = {"event": Event.JOB_EXPIRED, "model": broker.model, "job_id": job_id}
        _log.info("a job waited too long and expired", extra=fields)
