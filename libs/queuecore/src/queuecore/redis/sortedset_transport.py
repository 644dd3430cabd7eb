"""The sorted-set transport (seed 002, design §4): a peek takes nothing, one script moves the entry into its claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from queuecore.broker import NewJob, QueueLimits
from queuecore.redis import scripts
from queuecore.redis.broker import Depths
from queuecore.redis.client import Link
from queuecore.redis.peeking import PeekingBroker
from queuecore.scoring import rank_ms


class SortedSetBroker(PeekingBroker):
    """A queue whose waiting jobs are a sorted set: earliest deadline first, or by priority and age."""

    transport = "sortedset"

    def __init__(self, link: Link, model: str, limits: QueueLimits, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(link, model, limits, clock=clock)
        self._sweep_offset = 0

    @property
    def _bell_key(self) -> str:
        return self.keys.bell

    def _entry_fields(self, job: NewJob) -> dict[str, str]:
        fields = {"dedup_ms": str(self.limits.result_dedup_ms)}
        if self.limits.order == "priority":
            fields["rank"] = str(rank_ms(job.priority, job.fields.get("content_class", "")))
        elif job.deadline is None:
            fields["rank"] = str(self.limits.pending_max_age_ms)
        if self.limits.fair_share:
            fields["fair"] = "1"
        if self.limits.result_list:
            fields["result_list"] = "1"
        return fields

    # -- looking ------------------------------------------------------------------------------------------------

    async def _peek(self, before: Sequence[Sequence[str | int]], passed: Set[str]) -> Sequence[str]:
        # Twice as far where many are refused: looking past n of them takes about log n looks.
        most = len(passed) + max(self.limits.batch_size, len(passed))
        if self.limits.fair_share:
            for reply in await self._link.pipeline(before):
                _ = self._checked(reply)
            peeked = await scripts.load("edge/peek_fair", "")(
                self._link, {"queue": self.keys.queue, "paused": self.keys.paused, "limit": most}
            )
        else:
            *_, reply = await self._link.pipeline([*before, ("ZRANGE", self.keys.queue, 0, most - 1)])
            peeked = self._checked(reply)
        return [job_id for job_id in peeked if job_id not in passed]

    async def position(self, job_id: str, *, limit: int = 10_000) -> int | None:
        rank: int | None = await self._link.call("ZRANK", self.keys.queue, job_id)
        return rank if rank is not None and rank < limit else None

    async def _depths(self) -> Depths:
        keys = (self.keys.queue, self.keys.claims_idx, self.keys.paused)
        return Depths(*await self._link.pipeline([("ZCARD", key) for key in keys]))

    async def _held(self, limit: int, after: str = "") -> tuple[Sequence[str], str]:
        start = int(after or 0)
        found = await self._link.call("ZRANGE", self.keys.claims_idx, start, start + limit - 1)
        return self._page_of(found, limit, after)

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
