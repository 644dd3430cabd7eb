"""A claim that looks first: the peek takes nothing, one script takes the entry, and a doorbell ends the wait."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence, Set
from typing import Final

from queuecore.broker import Claim, QueueLimits, Worker
from queuecore.clock import monotonic
from queuecore.redis.broker import RedisBroker
from queuecore.redis.client import Link
from queuecore.redis.doorbell import Doorbell
from queuecore.redis.verbs import Refused

_REMEMBERED_SECONDS: Final = 5.0  # tokens may come back before their window is over


class PeekingBroker(RedisBroker):
    """What the sorted set and the stream share."""

    def __init__(self, link: Link, model: str, limits: QueueLimits, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(link, model, limits, clock=clock)
        self._bell = Doorbell(link, self._bell_key)
        self._interrupted = False
        self._asked: tuple[str, str] | None = None  # (claim_id, job id) whose claim's reply was not seen yet
        self._refused: dict[str, float] = {}  # job id -> until when, by the monotonic clock, its gate refuses it

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
            if isinstance(claim, Claim):
                return claim
        while not self._interrupted:
            left = None if end is None else end - monotonic()
            last = left is not None and left <= 0
            claim, changed = await self._look(
                worker, claim_id, execution_ms, [] if last else await self._bell.listening()
            )
            if claim is not None:
                return claim
            if changed:
                continue
            if last:
                return None
            await self._bell.wait(left)
        return None

    async def _look(
        self, worker: Worker, claim_id: str, execution_ms: int, before: Sequence[Sequence[str | int]]
    ) -> tuple[Claim | None, bool]:
        """The claim of the first that may run, those that a gate refuses passed; and whether to look again at once,
        because some were dealt with or taken by somebody else."""
        now = monotonic()
        self._refused = {job_id: until for job_id, until in self._refused.items() if until > now}
        changed = False
        while not changed and (peeked := await self._peek(before, self._refused.keys())):
            before = ()
            for job_id in peeked:
                if self._interrupted:
                    return None, False
                claim = await self._ask(worker, claim_id, job_id, execution_ms)
                if isinstance(claim, Claim):
                    return claim, False
                if claim is None:
                    changed = True
                elif claim.whole_queue:
                    return None, False
                else:
                    self._refused[job_id] = now + min(claim.seconds, _REMEMBERED_SECONDS)
        return None, changed

    async def _ask(self, worker: Worker, claim_id: str, job_id: str, execution_ms: int) -> Claim | Refused | None:
        self._asked = (claim_id, job_id)
        claim = await self._claim_entry(worker, claim_id, job_id, execution_ms)
        self._asked = None
        return claim

    @abstractmethod
    async def _peek(self, before: Sequence[Sequence[str | int]], passed: Set[str]) -> Sequence[str]:
        """The first of those that wait and are not ``passed``, after the commands ``before``; nothing is taken."""

    async def interrupt(self) -> None:
        self._interrupted = True
        await self._bell.interrupt()

    async def aclose(self) -> None:
        await self._bell.aclose()
