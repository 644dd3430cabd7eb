"""Depths of every queue as metrics, and phase 5: verdicts that nobody takes.

Depths are exported here and nowhere else. Each replica shows the same truth, so they are read with ``max()``.
"""

from __future__ import annotations

import logging
from typing import Final

from queuecore.broker import Broker
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event
from reaper.passes.reap import SORTED

GATE_OUTCOMES: Final = ("wait", "drop", "fault")
UNDELIVERED_AFTER_MS: Final = 60_000  # a verdict whose consumer died is given to another after a minute

_log = logging.getLogger(__name__)


class Depths:
    """Shows one queue's counts; says once when its verdicts are stuck."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stuck = False
        self._duplicates = 0
        self._refusals = dict.fromkeys(GATE_OUTCOMES, 0)

    async def show(self) -> None:
        """Read and show."""
        model, counts = self._broker.model, await self._broker.counts()
        metrics.QUEUE_DEPTH.labels(model, "pending").set(counts.pending)
        metrics.QUEUE_DEPTH.labels(model, "processing").set(counts.processing)
        if self._broker.limits.order in SORTED:
            metrics.CLAIM_DEPTH.labels(model).set(counts.processing)
        duplicates = metrics.DUPLICATE_RESULTS_SUPPRESSED.labels(model)
        duplicates.inc(max(0, counts.duplicates - self._duplicates))
        self._duplicates = counts.duplicates
        for outcome, count in zip(
            GATE_OUTCOMES, (counts.gate_waits, counts.gate_drops, counts.gate_faults), strict=True
        ):
            metrics.GATE_REFUSALS.labels(model, outcome).inc(max(0, count - self._refusals[outcome]))
            self._refusals[outcome] = count
        for state in ("pending", "processing", "delayed", "paused", "ordered", "deadletter", "outbox"):
            metrics.QUEUE_JOBS.labels(model, state).set(getattr(counts, state))
        metrics.OLDEST_PENDING_AGE_SECONDS.labels(model).set((counts.oldest_pending_ms or 0) / 1000)
        metrics.QUEUE_PAUSED.labels(model).set(bool(counts.paused_reason))
        oldest_ms = counts.oldest_outbox_ms or 0
        metrics.OUTBOX_AGE_SECONDS.labels(model).set(oldest_ms / 1000)
        stuck = oldest_ms > 2 * UNDELIVERED_AFTER_MS
        if stuck and not self._stuck:
            _log.error(
                "verdicts are not taken: is a gateway running?",
                extra={"event": Event.VERDICT_DELAYED, "model": model, "outbox": counts.outbox},
            )
        self._stuck = stuck
