"""Verdicts, taken from each queue's outbox: every one reaches some gateway at least once (G9).

One round: read events, plan webhooks, acknowledge, count. Whatever must happen at least once for a verdict comes
between reading and acknowledging; the counters come behind it: a round which is repeated counts nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from gateway.rates import Rates
from gateway.webhooks.notice import notice_of
from queuecore import clock
from queuecore.broker import Broker, OutboxEvent, Server
from queuecore.errors import BrokerUnavailable, OutcomeUnknown
from queuecore.job import JobRecord
from queuecore.notice import NewNotice
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event

Plan: TypeAlias = Callable[[NewNotice], Awaitable[None]]

_log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 5.0
LONGEST_PAUSE_SECONDS: Final = 5.0


class Outbox:
    """The verdicts of one model. ``consumer`` names this process among the gateways."""

    def __init__(self, broker: Broker, server: Server, consumer: str, rates: Rates, *, plan: Plan) -> None:
        self._broker = broker
        self._server = server
        self._consumer = consumer
        self._rates = rates
        self._plan_notice = plan

    async def consume(self, beat: Callable[[], None]) -> None:
        """Go round for ever; Redis may be away for any time."""
        pause_seconds = 0.1
        while True:
            beat()
            try:
                await self.round(wait_seconds=WAIT_SECONDS)
                pause_seconds = 0.1
            except (BrokerUnavailable, OutcomeUnknown) as error:
                _log.warning(
                    "verdicts of %s wait: %s", self._broker.model, error,
                    extra={"event": Event.CONNECTION_LOST, "model": self._broker.model, "error_code": error.code},
                )  # fmt: skip
                await clock.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, LONGEST_PAUSE_SECONDS)

    async def round(self, *, wait_seconds: float) -> int:
        """Take what is there, waiting for the first; how many.

        Raises:
            BrokerUnavailable, OutcomeUnknown: what was read comes again.
        """
        events = await self._broker.events(self._consumer, wait_seconds=wait_seconds)
        if not events:
            return 0
        await self._plan(events)
        records = await self._server.records([event.job_id for event in events])
        await self._broker.acknowledge([event.entry for event in events])
        self._count(events, records)
        return len(events)

    async def _plan(self, events: Sequence[OutboxEvent]) -> None:
        """What must happen before the verdicts are acknowledged: clients that asked are going to be told."""
        for event in events:
            if event.record is not None:
                await self._plan_notice(notice_of(event, event.record))

    def _count(self, events: Sequence[OutboxEvent], records: Mapping[str, JobRecord | None]) -> None:
        for event in events:
            self._rates.finished.tick()
            metrics.JOBS_FINISHED.labels(self._broker.model, event.status).inc()
            record = records.get(event.job_id)
            if record is not None and record.event_id == event.event_id:  # else redriven since, or gone
                observe(record)
            _log.info(
                "job %s", event.status,
                extra={
                    "event": Event.VERDICT_RELAYED, "job_id": event.job_id, "model": self._broker.model,
                    "status": event.status, "event_id": event.event_id,
                },
            )  # fmt: skip


def observe(record: JobRecord) -> None:
    """The histograms and the cause of one verdict."""
    model = record.model
    if record.queue_wait_ms is not None:
        metrics.QUEUE_WAIT_SECONDS.labels(model).observe(record.queue_wait_ms / 1000)
    if record.processing_ms is not None:
        metrics.PROCESSING_SECONDS.labels(model).observe(record.processing_ms / 1000)
    if record.finished_at is not None:
        metrics.END_TO_END_SECONDS.labels(model).observe(max(0, record.finished_at - record.created_at) / 1000)
    metrics.JOB_ATTEMPTS.labels(model).observe(record.claims)
    if record.error_code and record.status == "failed":
        metrics.JOBS_FAILED.labels(model, record.error_code).inc()
