"""A claim that looks first: the peek takes nothing, one script takes the entry, and a doorbell ends the wait."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from queuecore.broker import Claim, QueueLimits, Worker
from queuecore.clock import monotonic
from queuecore.redis.broker import RedisBroker
from queuecore.redis.client import Link
from queuecore.redis.doorbell import Doorbell


class PeekingBroker(RedisBroker):
    """What the sorted set and the stream share."""

    def __init__(self, link: Link, model: str, limits: QueueLimits, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(link, model, limits, clock=clock)
        self._bell = Doorbell(link, self._bell_key)
        self._interrupted = False
        self._asked: tuple[str, str] | None = None  # (claim_id, job id) whose claim's reply was not seen yet

    @property
    @abstractmethod
    def _bell_key(self) -> str: ...

    # -- claim --------------------------------------------------------------------------------------------------

    async def claim(
        self, worker: Worker, claim_id: str, *, wait_seconds: float | None = 0, execution_ms: int = 3_600_000
    ) -> Claim | None:
        end = None if wait_seconds is None else monotonic() + wait_seconds
        if self._asked and self._asked[0] == claim_id:  # a repeat: that script may have run
            claim = await self._ask(worker, claim_id, self._asked[1], execution_ms)
            if claim is not None:
                return claim
        while not self._interrupted:
            left = None if end is None else end - monotonic()
            last = left is not None and left <= 0
            peeked = await self._peek([] if last else await self._bell.listening())
            for job_id in peeked:
                if self._interrupted:
                    return None
                claim = await self._ask(worker, claim_id, job_id, execution_ms)
                if claim is not None:
                    return claim
            if peeked:
                continue  # each was dealt with or taken by somebody else: look again
            if last:
                return None
            await self._bell.wait(left)
        return None

    async def _ask(self, worker: Worker, claim_id: str, job_id: str, execution_ms: int) -> Claim | None:
        self._asked = (claim_id, job_id)
        claim = await self._claim_entry(worker, claim_id, job_id, execution_ms)
        self._asked = None
        return claim

    @abstractmethod
    async def _peek(self, before: Sequence[Sequence[str | int]]) -> Sequence[str]:
        """The first of those that wait, after the commands ``before``; nothing is taken."""

    async def interrupt(self) -> None:
        self._interrupted = True
        await self._bell.interrupt()

    async def aclose(self) -> None:
        await self._bell.aclose()
