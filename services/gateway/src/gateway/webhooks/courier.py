"""Sends what is due: claims attempts, makes them side by side, writes down what came of them.

A receiver has at most ``PER_TARGET`` attempts under way and everybody together ``AT_ONCE``, so one that is slow waits
for itself alone. Whatever is claimed and not settled, because this process died or Redis went away, comes up again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from gateway.webhooks import log
from gateway.webhooks.deliver import DEADLINE_SECONDS, Deliverer
from gateway.webhooks.schedule import after
from gateway.webhooks.sign import Secrets, signed
from queuecore import clock
from queuecore.broker import Server
from queuecore.errors import BrokerError, BrokerUnavailable, OutcomeUnknown
from queuecore.names import new_claim_id
from queuecore.notice import DueNotice, NewNotice, Notices
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event
from queuecore.telemetry.tracing import Tracer

_log = logging.getLogger(__name__)

AT_ONCE: Final = 512
PER_TARGET: Final = 8
LEASE_MS: Final = int(DEADLINE_SECONDS * 1000) + 15_000
LOOK_SECONDS: Final = 0.5
PARKED_EVERY_SECONDS: Final = 10.0
RETAIN_MS: Final = 2_592_000_000
SETTLE_PAUSES_SECONDS: Final = (0.1, 0.5, 2.0)


class Courier:
    """The deliveries of one gateway."""

    def __init__(
        self, notices: Notices, server: Server, deliverer: Deliverer, secrets: Secrets, tracer: Tracer
    ) -> None:
        self._tracer = tracer
        self._notices = notices
        self._server = server
        self._deliverer = deliverer
        self._secrets = secrets
        self._running: set[asyncio.Task[None]] = set()
        self._targets: Counter[str] = Counter()
        self._news = asyncio.Event()
        self._parked_at = float("-inf")

    async def plan(self, notice: NewNotice) -> None:
        """A verdict is to be told; once per event, however often it is planned.

        Raises:
            BrokerUnavailable, OutcomeUnknown
        """
        if await self._notices.plan(notice):
            self._news.set()

    async def work(self, beat: Callable[[], None]) -> None:
        """Go round for ever; what runs at the end is broken off."""
        pause_seconds = LOOK_SECONDS
        try:
            while True:
                beat()
                try:
                    started = await self.round()
                    await self._count_parked()
                    pause_seconds = LOOK_SECONDS
                except (BrokerUnavailable, OutcomeUnknown) as error:
                    _log.warning("webhooks wait: %s", error, extra={"event": Event.CONNECTION_LOST})
                    started, pause_seconds = 0, min(pause_seconds * 2, 5.0)
                if not started:
                    await self._rest(pause_seconds)
        finally:
            for task in self._running:
                _ = task.cancel()
            if self._running:
                _ = await asyncio.wait(self._running)
            await self._deliverer.aclose()

    async def round(self) -> int:
        """Claim what is due and start it; how many.

        Raises:
            BrokerUnavailable, OutcomeUnknown
        """
        room = AT_ONCE - len(self._running)
        if room <= 0:
            return 0
        busy = [target for target, count in self._targets.items() if count >= PER_TARGET]
        found = await self._notices.due(new_claim_id(), limit=room, per_target=PER_TARGET, skip=busy, lease_ms=LEASE_MS)
        for due in found:
            self._targets[due.notice.target] += 1
            task = asyncio.create_task(self._run(due))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return len(found)

    async def _run(self, due: DueNotice) -> None:
        try:
            await self._attempt(due)
        except BrokerError as error:
            _log.warning(
                "what came of a webhook was not written down, it is sent again: %s", error,
                extra={"event": Event.WEBHOOK_RETRIED, "event_id": due.notice.event_id, "job_id": due.notice.job_id},
            )  # fmt: skip
        finally:
            self._targets[due.notice.target] -= 1
            if not self._targets[due.notice.target]:
                del self._targets[due.notice.target]
            self._news.set()  # there is room for this receiver again

    async def _attempt(self, due: DueNotice) -> None:
        notice, body = due.notice, due.notice.body.encode()
        now_ms = await self._server.now_ms()
        headers = signed(notice.event_id, now_ms // 1000, body, self._secrets.current())
        with self._tracer.start("deliver", notice.model, job_id=notice.job_id, link=notice.traceparent) as span:
            if span.traceparent:
                headers["traceparent"] = span.traceparent
            answer = await self._deliverer.deliver(notice.url, body, headers)
            span.set("relayq.attempt", due.attempt)
            if answer.status is not None:
                span.set("http.response.status_code", answer.status)
            if answer.error or answer.status is None or answer.status >= 300:  # noqa: PLR2004  2xx is delivered
                span.fail("not_delivered")
        following = after(answer, due.attempt, due.planned_ago_ms)
        attempt = log.attempt_of(answer, following.outcome, now_ms)
        for pause_seconds in (*SETTLE_PAUSES_SECONDS, None):
            try:
                _ = await self._notices.settle(
                    due, attempt, following.status, retry_in_ms=following.in_ms, retain_ms=RETAIN_MS
                )
                break
            except (BrokerUnavailable, OutcomeUnknown):
                if pause_seconds is None:
                    raise
                await clock.sleep(pause_seconds)
        metrics.WEBHOOK_DELIVERIES.labels(following.outcome).inc()
        level = logging.INFO if following.outcome == "delivered" else logging.WARNING
        _log.log(
            level, "webhook %s", following.outcome,
            extra={
                "event": _EVENTS[following.outcome], "event_id": notice.event_id, "job_id": notice.job_id,
                "attempt": due.attempt, "http_status": answer.status, "error": answer.error, "seconds": answer.seconds,
            },
        )  # fmt: skip

    async def _count_parked(self) -> None:
        if clock.monotonic() - self._parked_at >= PARKED_EVERY_SECONDS:
            metrics.WEBHOOKS_PARKED.set(await self._notices.parked())
            self._parked_at = clock.monotonic()

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                _ = await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()


_EVENTS: Final = {
    "delivered": Event.WEBHOOK_DELIVERED,
    "retried": Event.WEBHOOK_RETRIED,
    "refused": Event.WEBHOOK_STOPPED,
    "parked": Event.WEBHOOK_PARKED,
    "blocked": Event.WEBHOOK_PARKED,
}
