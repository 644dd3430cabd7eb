"""The stream transport (seed 003, design §4): one consumer group over two lanes, high before normal.

Who runs a job is said by its record; in the group there are only two consumers of ours, ``claimed`` and ``released``,
so a dead worker leaves no consumer behind.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import chain
from typing import Any, Final

from redis.exceptions import ResponseError

from queuecore.redis import keys as names
from queuecore.redis.broker import Depths
from queuecore.redis.peeking import PeekingBroker
from queuecore.redis.records import fields_of

GROUP: Final = "workers"
RELEASED: Final = "released"
_NOT_YET: Final = ("NOGROUP", "no such key")  # nothing was ever queued there
_PAGE: Final = 10_000
_IDLE_MS: Final = 60_000  # seed 003: an entry that was idle for so long belongs to a dead worker
_MOST_RELEASED: Final = 10
_FARTHEST_POSITION: Final = 1_000  # a stream cannot say where an entry stands without reading up to it


class StreamBroker(PeekingBroker):
    """A queue whose jobs are the entries of two streams."""

    transport = "stream"

    @property
    def _bell_key(self) -> str:
        return self.keys.stream_bell

    # -- looking ------------------------------------------------------------------------------------------------

    async def _peek(self, before: Sequence[Sequence[str | int]], passed: Set[str]) -> Sequence[str]:
        most = _MOST_RELEASED + len(passed)  # refused ones are among the released
        looks: list[Sequence[str | int]] = []
        for stream in self.keys.lanes:
            looks += [("XPENDING", stream, GROUP, "-", "+", most, RELEASED), ("XINFO", "GROUPS", stream)]
        looks.append(("HMGET", self.keys.state, "paused", "moving"))
        replies = (await self._link.pipeline([*before, *looks]))[len(before) :]
        if any(self._checked(replies.pop())):  # what still stands there is about to be taken out, or not all is back
            return ()
        reads: list[Sequence[str | int]] = []
        for number, stream in enumerate(self.keys.lanes):
            back, groups = (self._or_nothing(one) for one in replies[2 * number : 2 * number + 2])
            reads += [("XRANGE", stream, entry, entry) for entry, *_ in back]
            reads.append(("XRANGE", stream, f"({_last_delivered(groups)}", "+", "COUNT", 1))
        rows = await self._link.pipeline(reads)
        ids = [_job_of(one) for one in chain.from_iterable(map(self._checked, rows)) if one]
        return [job_id for job_id in ids if job_id not in passed]

    def _or_nothing(self, reply: Any) -> Any:
        if isinstance(reply, ResponseError) and str(reply).startswith(_NOT_YET):
            return []
        return self._checked(reply)

    async def position(self, job_id: str, *, limit: int = 10_000) -> int | None:
        pending, _ = await self._waiting(min(limit, _FARTHEST_POSITION))
        return list(pending).index(job_id) if job_id in pending else None

    async def _waiting(self, limit: int) -> tuple[Sequence[str], Sequence[str]]:
        found: list[str] = []
        for stream in self.keys.lanes:
            back, groups = await self._link.pipeline(
                [("XPENDING", stream, GROUP, "-", "+", limit, RELEASED), ("XINFO", "GROUPS", stream)]
            )
            released = await self._jobs_at(stream, [one[0] for one in self._or_nothing(back)])
            after = f"({_last_delivered(self._or_nothing(groups))}"
            rest = await self._link.call("XRANGE", stream, after, "+", "COUNT", limit)
            found += [*released.values(), *await self._own(stream, rest)]
        return found[:limit], await self._link.call("ZRANGE", self.keys.paused, 0, limit - 1)

    async def _pending(self, stream: str, start: str) -> Sequence[Any]:
        """Delivered entries with their consumers, a page of them."""
        (rows,) = await self._link.pipeline([("XPENDING", stream, GROUP, start, "+", _PAGE)])
        return self._or_nothing(rows)

    async def _jobs_at(self, stream: str, entries: Sequence[str]) -> dict[str, str]:
        """The job of each of these entries, those that are not there any more left out."""
        rows = await self._link.pipeline([("XRANGE", stream, entry, entry) for entry in entries])
        found = [one for one in chain.from_iterable(map(self._checked, rows)) if one]
        return {entry: _job_of((entry, flat)) for entry, flat in found}

    async def _own(self, stream: str, entries: Sequence[Any]) -> list[str]:
        """Jobs of entries that stand for them, litter left out."""
        ids = [_job_of(one) for one in entries]
        known = await self._link.call("HMGET", self.keys.entries, *ids) if ids else []
        lane = stream.removeprefix(self.keys.base)
        return [
            job_id
            for job_id, at, (entry, _) in zip(ids, known, entries, strict=True)
            if at == f"{lane} {entry}"
        ]  # fmt: skip

    async def _depths(self) -> Depths:
        high, normal = self.keys.lanes
        replies = await self._link.pipeline(
            [
                ("XLEN", high),
                ("XLEN", normal),
                ("SCARD", self.keys.litter),
                ("XPENDING", high, GROUP),
                ("XPENDING", normal, GROUP),
                ("ZCARD", self.keys.paused),
            ]
        )
        entries, others, litter, *summaries, paused = map(self._or_nothing, replies)
        held = sum(
            int(count)
            for summary in summaries
            for consumer, count in (summary[3] or [] if summary else [])
            if consumer != RELEASED
        )
        return Depths(max(0, entries + others - litter - held), held, paused)

    async def _held(self, limit: int, after: str = "") -> tuple[Sequence[str], str]:
        found: list[str] = []
        lane, start = after.split() if after else ("0", "-")
        for number in range(int(lane), len(self.keys.lanes)):
            stream, room = self.keys.lanes[number], limit - len(found)
            rows = self._or_nothing(
                (await self._link.pipeline([("XPENDING", stream, GROUP, start, "+", room)]))[0]
            )  # fmt: skip
            taken = [entry for entry, consumer, *_ in rows if consumer != RELEASED]
            found += (await self._jobs_at(stream, taken)).values()
            if len(rows) == room:
                return found, f"{number} ({rows[-1][0]}"
            start = "-"
        return found, ""

    async def _entries(self, limit: int) -> Sequence[tuple[str, str]]:
        held, (pending, _) = await self._next_held("sweep", limit), await self._waiting(limit)
        return [*((one, "processing") for one in held), *((one, "pending") for one in pending)]

    async def _standing(self) -> set[str]:
        found = await self._paged("ZRANGE", self.keys.paused)
        for stream in self.keys.lanes:
            start = "-"  # delivered ones stand there if a consumer has them
            while page := await self._pending(stream, start):
                found.update((await self._jobs_at(stream, [one[0] for one in page])).values())
                start = f"({page[-1][0]}"
            (groups,) = await self._link.pipeline([("XINFO", "GROUPS", stream)])
            start = f"({_last_delivered(self._or_nothing(groups))}"
            while page := await self._link.call("XRANGE", stream, start, "+", "COUNT", _PAGE):
                found.update(await self._own(stream, page))
                start = f"({page[-1][0]}"
        return found

    async def sweep(self, *, limit: int = 1_000) -> Sequence[tuple[str, str]]:
        swept = list(await super().sweep(limit=limit))
        for stream in self.keys.lanes:
            (stale,) = await self._link.pipeline([("XPENDING", stream, GROUP, "IDLE", _IDLE_MS, "-", "+", limit)])
            swept += await self._remove_strangers(stream, [one[0] for one in self._or_nothing(stale)])
        return swept

    async def _remove_strangers(self, stream: str, entries: Sequence[str]) -> list[tuple[str, str]]:
        """Delivered entries that stand for no job of ours: nobody would ever acknowledge them."""
        found = await self._jobs_at(stream, entries)
        own = set(await self._own(stream, [(entry, {"job_id": job_id}) for entry, job_id in found.items()]))
        strangers = {entry: job_id for entry, job_id in found.items() if job_id not in own}
        for entry in strangers:
            member = f"{stream.removeprefix(self.keys.base)} {entry}"
            commands = [("XACK", stream, GROUP, entry), ("XDEL", stream, entry), ("SREM", self.keys.litter, member)]
            for reply in await self._link.pipeline(commands):
                _ = self._checked(reply)
        return [(job_id, "processing") for job_id in strangers.values()]

    # -- dead letters -------------------------------------------------------------------------------------------

    @property
    def _dead_count(self) -> tuple[str, str]:
        return "XLEN", self.keys.stream_dead

    async def _dead_ids(self, offset: int, limit: int) -> Sequence[str]:
        entries = await self._link.call("XRANGE", self.keys.stream_dead, "-", "+", "COUNT", offset + limit)
        return [_job_of(one) for one in entries[offset:]]

    async def drop(self, job_id: str) -> bool:
        entry = await self._link.call("HGET", names.job(job_id), "dead_entry")
        return bool(entry and await self._link.call("XDEL", self.keys.stream_dead, entry))


def _job_of(entry: Any) -> str:
    return fields_of(entry[1]).get("job_id", "")


def _last_delivered(groups: Sequence[Any]) -> str:
    for group in map(fields_of, groups):
        if group["name"] == GROUP:
            return group["last-delivered-id"]
    return "0"
