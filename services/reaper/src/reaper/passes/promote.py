"""Phase 4: delayed jobs that are due become pending; a breaker's pause that is over ends."""

from __future__ import annotations

from queuecore.broker import Broker
from queuecore.telemetry import metrics


async def promote(broker: Broker) -> None:
    """Promote what is due."""
    metrics.PROMOTED.labels(broker.model).inc(await broker.promote())
