"""The sorted-set transport (seed 002, design §4): a peek takes nothing, one script moves the entry into its claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from queuecore.broker import Claim, NewJob, QueueLimits, Worker
from queuecore.clock import monotonic
from queuecore.redis.broker import Depths, RedisBroker
from queuecore.redis.client import Link
from queuecore.redis.doorbell import Doorbell

# Seed 004: score = base - age_seconds * 0.001, so 1 of base is worth 1000 s. Here counted in ms of arrival.
RANKS_MS: Final[Mapping[str, int]] = MappingProxyType(
    {"normal": 100_000_000, "high": 50_000_000, "critical": 10_000_000, "false": 100_000_000, "true": 50_000_000}
)


class SortedSetBroker(RedisBroker):
    """A queue whose waiting jobs are a sorted set: earliest deadline first, or by priority and age."""

    transport = "sortedset"

    def __init__(self, link: Link, model: str, limits: QueueLimits, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(link, model, limits, clock=clock)
        self._bell = Doorbell(link, self.keys.bell)
        self._interrupted = False
        self._asked: tuple[str, str] | None = None  # (claim_id, job id) whose claim's reply was not seen yet
        self._sweep_offset = 0

    def _entry_fields(self, job: NewJob) -> dict[str, str]:
        fields = {"dedup_ms": str(self.limits.result_dedup_ms)}
        if self.limits.order == "priority":
            fields["rank"] = str(RANKS_MS[job.priority])
        elif job.deadline is None:
            fields["rank"] = str(self.limits.pending_max_age_ms)
        if self.limits.result_list:
            fields["result_list"] = "1"
        return fields

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
            peeked = await self._peek(listen=not last)
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

    async def _peek(self, *, listen: bool) -> Sequence[str]:
        """The first of those that wait; nothing is taken."""
        before = await self._bell.listening() if listen else []
        *_, peeked = await self._link.pipeline([*before, ("ZRANGE", self.keys.queue, 0, self.limits.batch_size - 1)])
        return self._checked(peeked)

    async def interrupt(self) -> None:
        self._interrupted = True
        await self._bell.interrupt()

    async def aclose(self) -> None:
        await self._bell.aclose()

    # -- looking ------------------------------------------------------------------------------------------------

    async def position(self, job_id: str, *, limit: int = 10_000) -> int | None:
        rank: int | None = await self._link.call("ZRANK", self.keys.queue, job_id)
        return rank if rank is not None and rank < limit else None

    async def _depths(self) -> Depths:
        keys = (self.keys.queue, self.keys.claims_idx, self.keys.paused)
        return Depths(*await self._link.pipeline([("ZCARD", key) for key in keys]))

    async def _held(self, limit: int) -> Sequence[str]:
        return await self._link.call("ZRANGE", self.keys.claims_idx, 0, limit - 1)

    async def _entries(self, limit: int) -> Sequence[tuple[str, str]]:
        start = self._sweep_offset
        held, waiting = await self._link.pipeline(
            [
                ("ZRANGE", self.keys.claims_idx, 0, limit - 1),
                ("ZRANGE", self.keys.queue, start, start + limit - 1),
            ]
        )
        self._sweep_offset = start + limit if len(waiting) == limit else 0
        return [*((one, "processing") for one in held), *((one, "pending") for one in waiting)]

    async def _standing(self) -> set[str]:
        keys = (self.keys.claims_idx, self.keys.queue, self.keys.paused)
        return set[str]().union(*[await self._paged("ZRANGE", key) for key in keys])

    async def _waiting(self, limit: int) -> tuple[Sequence[str], Sequence[str]]:
        pending, paused = await self._link.pipeline(
            [("ZRANGE", key, 0, limit - 1) for key in (self.keys.queue, self.keys.paused)]
        )
        return pending, paused
