"""Who waits for which job: one subscription for all of them.

The order that loses nothing (case K2): register, then read, then wait. A wake-up between the read and the wait stays
set; a wake-up that was never published is made up for by looking again, at growing intervals.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from typing import Final

from gateway.problems import RETRY_SECONDS, Refusal
from queuecore.broker import Signals
from queuecore.telemetry import metrics

FIRST_LOOK_SECONDS: Final = 1.0
LONGEST_LOOK_SECONDS: Final = 5.0
_BEAT_SECONDS: Final = 5.0


class Waiter:
    """One request that waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._pause = FIRST_LOOK_SECONDS

    def wake(self) -> None:
        """Look again."""
        self._event.set()

    async def wait(self, at_most_seconds: float) -> None:
        """Return when the job may have changed, when it is time to look anyway, or after ``at_most_seconds``."""
        try:
            async with asyncio.timeout(min(self._pause, at_most_seconds)):
                _ = await self._event.wait()
        except TimeoutError:
            self._pause = min(self._pause * 1.5, LONGEST_LOOK_SECONDS)
        self._event.clear()


class Waiters:
    """All of them, and the task that wakes them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._by_job: dict[str, set[Waiter]] = {}
        self.closing = False

    @contextmanager
    def waiting(self, job_id: str) -> Generator[Waiter, None, None]:
        """Register for a job; read its state after this.

        Raises:
            Refusal: too many wait already (503).
        """
        if self._count >= self._most:
            raise Refusal(
                503, "too_many_waiters", f"{self._most} clients wait already; ask without wait",
                headers={"retry-after": str(RETRY_SECONDS)},
            )  # fmt: skip
        waiter = Waiter()
        self._by_job.setdefault(job_id, set()).add(waiter)
        self._count += 1
        metrics.WAITERS.set(self._count)
        try:
            yield waiter
        finally:
            self._count -= 1
            metrics.WAITERS.set(self._count)
            mine = self._by_job[job_id]
            mine.discard(waiter)
            if not mine:
                del self._by_job[job_id]

    def wake(self, job_id: str) -> None:
        """The job changed; "" = any may have."""
        if job_id:
            for waiter in self._by_job.get(job_id, ()):
                waiter.wake()
            return
        for waiters in self._by_job.values():
            for waiter in waiters:
                waiter.wake()

    def close(self) -> None:
        """Let every wait end now: the process stops."""
        self.closing = True
        self.wake("")

    async def listen(self, signals: Signals, beat: Callable[[], None]) -> None:
        """Pass wake-ups on, for ever; ``beat`` is called at least every few seconds."""
        changes: AsyncIterator[str] = signals.changes()
        # The iteration must not be cancelled to beat in between: that would end it.
        coming: asyncio.Task[str] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(_next(changes))
                done, _ = await asyncio.wait({coming}, timeout=_BEAT_SECONDS)
                beat()
                if done:
                    self.wake(coming.result())
                    coming = None
        finally:
            if coming is not None:
                _ = coming.cancel()
                _ = await asyncio.wait({coming})


async def _next(changes: AsyncIterator[str]) -> str:
    async for job_id in changes:
        return job_id
    raise RuntimeError("the subscription ended")
