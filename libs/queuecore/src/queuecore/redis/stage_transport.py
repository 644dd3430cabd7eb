"""A pipeline's stage (seed 004, design §10.4): a sorted set of what waits, a hash of what is being done.

The seed's six operations are the verbs of every other transport: ADD is submit, FETCH claim, COMPLETE complete, FAIL
fail, RECLAIM reap and HEARTBEAT renew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from queuecore.broker import NewJob, QueueLimits
from queuecore.redis.broker import Depths
from queuecore.redis.client import Link
from queuecore.redis.peeking import PeekingBroker
from queuecore.redis.records import fields_of
from queuecore.scoring import rank_ms


class StageBroker(PeekingBroker):
    """The queue of one stage; ``complete`` moves a run into the next stage's."""

    transport = "stage"

    def __init__(self, link: Link, model: str, limits: QueueLimits, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(link, model, limits, clock=clock)
        self._sweep_offset = 0

    @property
    def _bell_key(self) -> str:
        return self.keys.bell

    def _entry_fields(self, job: NewJob) -> dict[str, str]:
        return {"rank": str(rank_ms(job.priority, job.fields.get("content_class", "")))}

    # -- looking ------------------------------------------------------------------------------------------------

    async def _peek(self, before: Sequence[Sequence[str | int]], passed: Set[str]) -> Sequence[str]:
        most = len(passed) + max(self.limits.batch_size, len(passed))
        *_, peeked = await self._link.pipeline([*before, ("ZRANGE", self.keys.queue, 0, most - 1)])
        return [job_id for job_id in self._checked(peeked) if job_id not in passed]

    async def position(self, job_id: str, *, limit: int = 10_000) -> int | None:
        rank: int | None = await self._link.call("ZRANK", self.keys.queue, job_id)
        return rank if rank is not None and rank < limit else None

    async def _depths(self) -> Depths:
        keys = self.keys
        return Depths(
            *await self._link.pipeline([("ZCARD", keys.queue), ("HLEN", keys.fetched), ("ZCARD", keys.paused)])
        )

    async def _held(self, limit: int, after: str = "") -> tuple[Sequence[str], str]:
        cursor, flat = await self._link.call("HSCAN", self.keys.fetched, after or "0", "COUNT", limit)
        return list(fields_of(flat)), "" if cursor in {"0", 0} else cursor

    async def _entries(self, limit: int) -> Sequence[tuple[str, str]]:
        start = self._sweep_offset
        held = await self._next_held("sweep", limit)
        waiting = await self._link.call("ZRANGE", self.keys.queue, start, start + limit - 1)
        self._sweep_offset = start + limit if len(waiting) == limit else 0
        return [*((one, "processing") for one in held), *((one, "pending") for one in waiting)]

    async def _standing(self) -> set[str]:
        found = [await self._paged("ZRANGE", key) for key in (self.keys.queue, self.keys.paused)]
        return set(await self._link.call("HKEYS", self.keys.fetched)).union(*found)

    async def _waiting(self, limit: int) -> tuple[Sequence[str], Sequence[str]]:
        pending, paused = await self._link.pipeline(
            [("ZRANGE", key, 0, limit - 1) for key in (self.keys.queue, self.keys.paused)]
        )
        return pending, paused

    # -- dead letters -------------------------------------------------------------------------------------------

    @property
    def _dead_count(self) -> tuple[str, str]:
        return "LLEN", self.keys.stage_dead

    async def _dead_ids(self, offset: int, limit: int) -> Sequence[str]:
        return await self._link.call("LRANGE", self.keys.stage_dead, offset, offset + limit - 1)

    async def drop(self, job_id: str) -> bool:
        return bool(await self._link.call("LREM", self.keys.stage_dead, 0, job_id))
