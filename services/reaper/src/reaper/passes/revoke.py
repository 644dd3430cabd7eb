"""Jobs past their execution limit end, although their owner renews: it should have stopped them itself."""

from __future__ import annotations

import logging
from typing import Final

from queuecore.broker import Broker
from queuecore.clock import monotonic
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event
from reaper.grace import RestartGrace

GRACE_MS: Final = 5_000  # what the owner may need to notice and report by itself

_log = logging.getLogger(__name__)


async def revoke(broker: Broker, grace: RestartGrace) -> None:
    """End what is too late; not in a restart grace, for its owner may have finished while nobody could be told."""
    if grace.holds(broker.model, monotonic()):
        return
    for job_id in await broker.revoke(grace_ms=GRACE_MS):
        metrics.REVOKED.labels(broker.model).inc()
        fields = {"event": Event.JOB_REVOKED, "model": broker.model, "job_id": job_id}
        _log.warning("a job ran past its limit and was ended", extra=fields)
