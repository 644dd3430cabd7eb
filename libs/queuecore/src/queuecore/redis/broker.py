"""One model's queue on Redis: upkeep and operators. Subclasses say where its jobs stand and how one is claimed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from queuecore.broker import OutboxEvent, OwnedClaim, QueueCounts, QueueLimits, Reaped
from queuecore.errors import JobNotFound, ScriptContractError, WrongState
from queuecore.job import JobRecord, Status
from queuecore.redis import keys as names
from queuecore.redis.client import Link, raise_refusal
from queuecore.redis.outbox import Outbox
from queuecore.redis.records import fields_of, read_records, scored, server_ms
from queuecore.redis.verbs import RedisVerbs, one_word

_PAGE: Final = 10_000
_GATE_COUNTS: Final = ("gate_waits", "gate_drops", "gate_faults")


class Depths(NamedTuple):
    """How many jobs stand in the structures that differ between transports."""

    pending: int
    processing: int
    paused: int


class RedisBroker(RedisVerbs):
    """The contract on Redis, short of the structures."""

    def __init__(self, link: Link, model: str, limits: QueueLimits, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(link, model, limits, clock=clock)
        self._outbox = Outbox(link, self.keys)
        self._index_cursor = "0"
        self._held_after: dict[str, str] = {}  # verb -> where its next page begins

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections that belong to this queue alone."""

    # -- where jobs stand: what a transport knows ---------------------------------------------------------------

    @abstractmethod
    async def _depths(self) -> Depths: ...

    @abstractmethod
    async def _standing(self) -> set[str]:
        """Every id in pending, processing and paused now, read in pages."""

    @abstractmethod
    async def _waiting(self, limit: int) -> tuple[Sequence[str], Sequence[str]]:
        """Ids in pending and in paused, the first to run first."""

    @staticmethod
    def _checked(reply: Any) -> Any:
        """A pipelined reply, or its refusal raised."""
        if isinstance(reply, ResponseError):
            raise_refusal("a command", reply)
            raise ScriptContractError(str(reply)) from reply
        return reply

    async def _paged(self, command: str, key: str) -> set[str]:
        """Every member of a list or zset."""
        found: set[str] = set()
        start = 0
        while page := await self._link.call(command, key, start, start + _PAGE - 1):
            found.update(page)
            start += len(page)
        return found

    # -- upkeep -------------------------------------------------------------------------------------------------

    @abstractmethod
    async def _held(self, limit: int, after: str = "") -> tuple[Sequence[str], str]:
        """Ids of entries that some worker has taken, oldest first; and where the next page begins, "" at the first."""

    async def _next_held(self, verb: str, limit: int) -> Sequence[str]:
        """The page behind that of this verb's call before: after enough calls each entry was looked at."""
        after = self._held_after.get(verb, "")
        held, self._held_after[verb] = await self._held(limit, after)
        if not held and after:
            held, self._held_after[verb] = await self._held(limit)
        return held

    def _page_of(self, found: Sequence[str], limit: int, after: str) -> tuple[Sequence[str], str]:
        """A page of a list or zset. What is removed meanwhile moves others into a page that was seen: a round later."""
        return list(dict.fromkeys(found)), str(int(after or 0) + limit) if len(found) == limit else ""

    @abstractmethod
    async def _entries(self, limit: int) -> Sequence[tuple[str, str]]:
        """(id, state) of queue entries, pending and processing, the next ``limit`` at each call."""

    async def reap(self, *, first_seen_grace_ms: int = 5_000, limit: int = 1_000) -> Sequence[Reaped]:
        return [
            Reaped(job_id, await self._reap(job_id, grace_ms=first_seen_grace_ms, cause="lease lapsed"))
            for job_id in await self._next_held("reap", limit)
        ]

    async def reap_dead(self, owned: OwnedClaim, exit_cause: str) -> Reaped:
        outcome = await self._reap(owned.job_id, grace_ms=0, cause=exit_cause, owned=owned)
        return Reaped(owned.job_id, outcome)

    async def _reap(self, job_id: str, *, grace_ms: int, cause: str, owned: OwnedClaim | None = None) -> Any:
        reply = await self._run(
            "reap",
            job_id,
            grace_ms=grace_ms,
            owner_client=owned.client if owned else "",
            fence=owned.fence if owned else "",
            claim_id=owned.claim_id if owned else "",
            cause=cause,
        )
        return one_word(
            "reap", reply, {"requeued", "deadletter", "cancelled", "dropped", "adopted", "waiting", "live", "skipped"}
        )

    async def owners(self, *, limit: int = 1_000) -> Sequence[OwnedClaim]:
        held = await self._next_held("owners", limit)
        wanted = ("status", "fence", "claim_id", "owner_client")
        rows = await self._link.pipeline([("HMGET", names.job(job_id), *wanted) for job_id in held])
        return [
            OwnedClaim(job_id, int(row[1]), row[2], row[3])
            for job_id, row in zip(held, rows, strict=True)
            if isinstance(row, list) and row[0] == Status.PROCESSING and row[1] and row[2] and row[3]
        ]

    async def revoke(self, *, grace_ms: int, limit: int = 1_000) -> Sequence[str]:
        held = await self._next_held("revoke", limit)
        replies = [(job_id, await self._run("revoke", job_id, grace_ms=grace_ms)) for job_id in held]
        return [job_id for job_id, reply in replies if one_word("revoke", reply, {"revoked", "kept"}) == "revoked"]

    async def expire(self, *, limit: int = 1_000) -> Sequence[str]:
        now = self._clock() if self._clock else await server_ms(self._link)
        late, old = await self._link.pipeline(
            [
                ("ZRANGE", self.keys.deadlines, "-inf", now, "BYSCORE", "LIMIT", 0, limit),
                (
                    "ZRANGE",
                    self.keys.waiting,
                    "-inf",
                    now - self.limits.pending_max_age_ms,
                    "BYSCORE",
                    "LIMIT",
                    0,
                    limit,
                ),
            ]
        )
        expired: list[str] = []
        for job_id in dict.fromkeys([*late, *old]):
            reply = await self._run("expire", job_id, max_age_ms=self.limits.pending_max_age_ms)
            if one_word("expire", reply, {"expired", "kept", "gone"}) == "expired":
                expired.append(job_id)
        return expired

    async def promote(self, *, limit: int = 1_000) -> int:
        match await self._run("promote", limit=limit):
            case ["promoted", count, left]:
                if left == "more":
                    await self._settle()
                return int(count)
            case reply:
                raise ScriptContractError(f"promote answered {reply}")

    async def sweep(self, *, limit: int = 1_000) -> Sequence[tuple[str, str]]:
        entries = await self._entries(limit)
        rows = await self._link.pipeline([("HGET", names.job(job_id), "status") for job_id, _ in entries])
        swept: list[tuple[str, str]] = []
        for (job_id, state), status in zip(entries, rows, strict=True):
            if status in {Status.PENDING, Status.PROCESSING}:
                continue
            if one_word("sweep", await self._run("sweep", job_id), {"swept", "kept"}) == "swept":
                swept.append((job_id, state))
        return swept

    async def reconcile(self, *, grace_ms: int = 30_000, limit: int = 1_000) -> Sequence[Reaped]:
        cursor, flat = await self._link.call("ZSCAN", self.keys.jobs, self._index_cursor, "COUNT", limit)
        self._index_cursor = cursor
        ids = list(dict.fromkeys(job_id for job_id, _ in scored(flat)))
        rows = await self._link.pipeline([("HMGET", names.job(job_id), "status", "ordering_key") for job_id in ids])
        live = {
            job_id: row[1]
            for job_id, row in zip(ids, rows, strict=True)
            if isinstance(row, list) and row[0] in {Status.PENDING, Status.PROCESSING}
        }
        gone = [job_id for job_id, row in zip(ids, rows, strict=True) if isinstance(row, list) and row[0] is None]
        for job_id in islice(gone, limit):  # the index forgets jobs whose record went with its retention
            _ = await self._run("sweep", job_id)
        known = await self._standing() | await self._paged("ZRANGE", self.keys.delayed) if live else set[str]()
        found: list[Reaped] = []
        for job_id, ordering_key in live.items():
            if job_id in known and not ordering_key:
                continue
            reply = await self._run("reconcile", job_id, grace_ms=grace_ms)
            if reply[0] != "ok":
                found.append(Reaped(job_id, reply[0]))  # pyright: ignore[reportArgumentType]  words of its header
        return found

    # -- operators ----------------------------------------------------------------------------------------------

    async def counts(self) -> QueueCounts:
        keys = self.keys
        pending, processing, paused = await self._depths()
        delayed, dead, state, oldest, outbox, verdict = await self._link.pipeline(
            [
                ("ZCARD", keys.delayed),
                self._dead_count,
                ("HMGET", keys.state, "ordered", "paused", "paused_until", "duplicates", *_GATE_COUNTS),
                ("ZRANGE", keys.waiting, 0, 0, "WITHSCORES"),
                ("XLEN", keys.outbox),
                ("XRANGE", keys.outbox, "-", "+", "COUNT", 1),
            ]
        )
        now = self._clock() if self._clock else await server_ms(self._link)
        created = scored(oldest)
        return QueueCounts(
            pending=pending,
            processing=processing,
            delayed=delayed,
            paused=paused,
            ordered=int(state[0] or 0),
            deadletter=dead,
            outbox=outbox,
            oldest_pending_ms=max(0, now - int(created[0][1])) if created else None,
            paused_reason=state[1] or "",
            paused_until=int(state[2]) if state[2] else None,
            oldest_outbox_ms=now - int(fields_of(verdict[0][1]).get("finished_at", now)) if verdict else None,
            duplicates=int(state[3] or 0),
            gate_waits=int(state[4] or 0),
            gate_drops=int(state[5] or 0),
            gate_faults=int(state[6] or 0),
        )

    async def pause(self, *, reason: str = "operator", cooldown_ms: int | None = None) -> None:
        reply = await self._run("pause", reason=reason, cooldown_ms="" if cooldown_ms is None else cooldown_ms)
        if one_word("pause", reply, {"paused", "more"}) == "more":
            await self._settle()

    async def resume(self) -> None:
        if one_word("resume", await self._run("resume"), {"resumed", "more"}) == "more":
            await self._settle()

    async def _settle(self) -> None:
        """Finish a pause or its end: in steps, so that one script never holds Redis for as long as many jobs take."""
        while one_word("edge/settle", await self._run("edge/settle"), {"settled", "more"}) == "more":
            pass

    async def purge(self, *, limit: int = 1_000) -> int:
        pending, paused = await self._waiting(limit)
        delayed, held_back = await self._link.pipeline(
            [("ZRANGE", self.keys.delayed, 0, limit - 1), ("HKEYS", self.keys.ordering)]
        )
        behind = await self._link.pipeline(
            [("LRANGE", self.keys.ordered(key), 0, limit - 1) for key in held_back[:limit]]
        )
        # Those behind their key first: a purged head would let its next in.
        ids = dict.fromkeys([*(one for row in behind for one in reversed(row)), *reversed(pending), *paused, *delayed])
        count = 0
        for job_id in islice(ids, limit):
            count += (await self._run("purge", job_id))[0] == "purged"
        return count

    async def deadletters(self, *, offset: int = 0, limit: int = 50) -> Sequence[JobRecord]:
        ids = await self._dead_ids(offset, limit)
        records = await read_records(self._link, ids)
        return [record for job_id in ids if (record := records[job_id])]

    async def redrive(self, job_id: str, *, generation: int | None = None) -> None:
        if generation is None:
            generation = (await self.get(job_id)).generation
        reply = await self._run("redrive", job_id, generation=generation)
        match reply:
            case ["redriven"]:
                return
            case ["over", status]:
                raise WrongState(job_id, status)
            case ["missing"]:
                _ = await self.get(job_id)
                raise JobNotFound(job_id)
            case _:
                raise ScriptContractError(f"redrive answered {reply}")

    @property
    def _dead_count(self) -> tuple[str, str]:
        return "LLEN", self.keys.deadletter

    async def _dead_ids(self, offset: int, limit: int) -> Sequence[str]:
        return await self._link.call("LRANGE", self.keys.deadletter, offset, offset + limit - 1)

    async def drop(self, job_id: str) -> bool:
        return bool(await self._link.call("LREM", self.keys.deadletter, 0, job_id))

    # -- verdicts -----------------------------------------------------------------------------------------------

    async def events(self, consumer: str, *, wait_seconds: float = 0, limit: int = 100) -> Sequence[OutboxEvent]:
        return await self._outbox.events(consumer, wait_seconds=wait_seconds, limit=limit)

    async def acknowledge(self, entries: Sequence[str]) -> None:
        await self._outbox.acknowledge(entries)
