"""An operator's hands and a foreign relay's commands on a queue, the same over memory and Redis."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pytest

from queuecore.broker import Broker, Order, QueueLimits
from queuecore.job import Status
from queuecore.redis.client import Link
from queuecore.redis.keys import QueueKeys, job
from queuecore.redis.records import fields_of, scored, server_ms
from queuecore.testing.clock import ManualClock
from queuecore.testing.memory import MemoryQueue


class Places(NamedTuple):
    """Where everything stands; lists in pop order."""

    pending: list[str]
    processing: list[str]
    paused: list[str]
    delayed: list[str]
    deadletter: list[str]


class Operator(ABC):
    """The seed's redis-cli recipes, and what only a test does."""

    @abstractmethod
    async def places(self) -> Places:
        """LRANGE and ZRANGE of everything."""

    @abstractmethod
    async def residue(self) -> list[str]:
        """Names of keys that may not be left once every job is terminal."""

    @abstractmethod
    async def pop(self) -> str | None:
        """BLMOVE without a claim, as a foreign relay or a relay that dies in between does."""

    @abstractmethod
    async def move_back(self, job_id: str = "") -> None:
        """LMOVE processing pending RIGHT LEFT: the claim taken last, which ``job_id`` names if there are several."""

    @abstractmethod
    async def offer_again(self) -> None:
        """The same without a look at the lease: it stays where it is."""

    @abstractmethod
    async def remove(self, job_id: str) -> None:
        """LREM processing 1 id."""

    @abstractmethod
    async def remove_waiting(self, job_id: str) -> None:
        """LREM pending 1 id: nothing allows it, reconcile mends it."""

    @abstractmethod
    async def set_lease(self, job_id: str, milliseconds: int = 600_000) -> None:
        """SET lease PX, the value a foreign relay writes."""

    @abstractmethod
    async def delete_lease(self, job_id: str) -> None:
        """DEL lease."""

    @abstractmethod
    async def delete_record(self, job_id: str) -> None:
        """The record expired under the queue's feet."""

    @abstractmethod
    async def push_processing(self, job_id: str) -> None:
        """A stale entry left over in processing."""


# capability -> orders of the transports that lack it
LACKING: Final[Mapping[str, Sequence[Order]]] = {"detached-lease": ("lanes",)}


class Stand(NamedTuple):
    """What a contract test gets."""

    broker: Broker
    operator: Operator
    clock: ManualClock

    @property
    def limits(self) -> QueueLimits:
        """Of its queue; ``order`` says in which order jobs run."""
        return self.broker.limits

    def needs(self, capability: str) -> None:
        """Skip the test where the transport has not got this; docs/transports.md lists them."""
        if self.limits.order in LACKING[capability]:
            pytest.skip(f"capability {capability}: docs/transports.md")

    @property
    def first(self) -> str:
        """The priority that goes first, in this queue's words."""
        return "true" if self.limits.order == "arrival" else "high"

    @property
    def usual(self) -> str:
        """The priority of those that asked for none."""
        return "false" if self.limits.order == "arrival" else "normal"


class MemoryOperator(Operator):
    """Hands on a ``MemoryQueue``."""

    def __init__(self, queue: MemoryQueue, model: str) -> None:
        self._specification = queue.specifications[model]
        self._queue = queue

    async def places(self) -> Places:
        state = self._specification.state
        delayed = [one for _, one in sorted((at, one) for one, at in state.delayed.items())]
        return Places(list(state.pending), list(state.processing), list(state.paused), delayed, list(state.deadletter))

    async def residue(self) -> list[str]:
        state = self._specification.state
        left = {
            "pending": state.pending,
            "processing": state.processing,
            "paused": state.paused,
            "delayed": state.delayed,
            "ordered": state.ordered,
            "ordering": state.ordering,
            "first-seen": state.first_seen,
            "missing": state.missing,
            "lease": state.foreign_leases,
        }
        return [name for name, value in left.items() if value]

    async def pop(self) -> str | None:
        return self._specification.pop()

    async def move_back(self, job_id: str = "") -> None:
        assert job_id in {"", self._specification.state.processing[-1]}
        self._specification.move_back()

    async def offer_again(self) -> None:
        state = self._specification.state
        state.pending.insert(0, state.processing.pop())

    async def remove(self, job_id: str) -> None:
        self._specification.state.processing.remove(job_id)

    async def remove_waiting(self, job_id: str) -> None:
        self._specification.state.pending.remove(job_id)

    async def set_lease(self, job_id: str, milliseconds: int = 600_000) -> None:
        self._specification.state.foreign_leases[job_id] = self._queue.clock() + milliseconds

    async def delete_lease(self, job_id: str) -> None:
        _ = self._specification.state.foreign_leases.pop(job_id, None)

    async def delete_record(self, job_id: str) -> None:
        del self._specification.state.jobs[job_id]

    async def push_processing(self, job_id: str) -> None:
        self._specification.state.processing.append(job_id)


class RedisListOperator(Operator):
    """redis-cli on the list transport's keys."""

    def __init__(self, link: Link, model: str) -> None:
        self._link = link
        self._keys = QueueKeys(model)

    async def places(self) -> Places:
        keys = self._keys
        rows = await self._link.pipeline(
            [
                ("LRANGE", keys.pending, 0, -1),
                ("LRANGE", keys.processing, 0, -1),
                ("LRANGE", keys.paused, 0, -1),
                ("ZRANGE", keys.delayed, 0, -1),
                ("LRANGE", keys.deadletter, 0, -1),
            ]
        )
        return Places(*rows)

    async def residue(self) -> list[str]:
        allowed = {self._keys.jobs, self._keys.outbox, self._keys.deadletter, self._keys.state}
        found: list[str] = await self._link.call("KEYS", f"{self._keys.base}:*")
        return sorted(key.removeprefix(f"{self._keys.base}:") for key in found if key not in allowed)

    async def pop(self) -> str | None:
        return await self._link.call("LMOVE", self._keys.pending, self._keys.processing, "LEFT", "RIGHT")

    async def move_back(self, job_id: str = "") -> None:
        _ = await self._link.call("LMOVE", self._keys.processing, self._keys.pending, "RIGHT", "LEFT")

    async def offer_again(self) -> None:
        await self.move_back()

    async def remove(self, job_id: str) -> None:
        _ = await self._link.call("LREM", self._keys.processing, 1, job_id)

    async def remove_waiting(self, job_id: str) -> None:
        _ = await self._link.call("LREM", self._keys.pending, 1, job_id)

    async def set_lease(self, job_id: str, milliseconds: int = 600_000) -> None:
        _ = await self._link.call("SET", self._keys.lease(job_id), "seed-relay", "PX", milliseconds)

    async def delete_lease(self, job_id: str) -> None:
        _ = await self._link.call("DEL", self._keys.lease(job_id))

    async def delete_record(self, job_id: str) -> None:
        _ = await self._link.call("DEL", job(job_id))

    async def push_processing(self, job_id: str) -> None:
        _ = await self._link.call("RPUSH", self._keys.processing, job_id)


class RedisSortedSetOperator(Operator):
    """redis-cli on the sorted-set transport's keys, and what a relay of another make does to them (seed 002)."""

    def __init__(self, link: Link, model: str, clock: Callable[[], int] | None = None) -> None:
        self._link = link
        self._keys = QueueKeys(model)
        self._clock = clock

    async def places(self) -> Places:
        keys = self._keys
        return Places(
            *await self._link.pipeline(
                [("ZRANGE", key, 0, -1) for key in (keys.queue, keys.claims_idx, keys.paused, keys.delayed)]
                + [("LRANGE", keys.deadletter, 0, -1)]
            )
        )

    async def residue(self) -> list[str]:
        keys = self._keys
        allowed = {keys.jobs, keys.outbox, keys.deadletter, keys.state, keys.bell, f"{keys.bell}:listeners"}
        allowed.add(f"{keys.tenants}:idle")
        found: list[str] = [
            *await self._link.call("KEYS", f"{keys.base}:*"), *await self._link.call("KEYS", f"{keys.queue}*")
        ]  # fmt: skip
        return sorted(key for key in found if key not in allowed)

    async def pop(self) -> str | None:
        found = scored(await self._link.call("ZRANGE", self._keys.queue, 0, 0, "WITHSCORES"))
        if not found:
            return None
        job_id, score = found[0]
        await self._do(
            ("ZREM", self._keys.queue, job_id),
            ("HSET", self._keys.claimed, job_id, job_id, f"{job_id}:score", f"{score:.0f}"),
            ("ZADD", self._keys.claims_idx, 0, job_id),
        )
        return job_id

    async def offer_again(self) -> None:
        (job_id,) = await self._link.call("ZRANGE", self._keys.claims_idx, 0, -1)
        score = await self._link.call("HGET", self._keys.claimed, f"{job_id}:score")
        await self._do(("ZADD", self._keys.queue, score, job_id))

    async def move_back(self, job_id: str = "") -> None:
        if not job_id:
            (job_id,) = await self._link.call("ZRANGE", self._keys.claims_idx, 0, -1)
        score = await self._link.call("HGET", self._keys.claimed, f"{job_id}:score")
        await self.remove(job_id)
        await self._do(("ZADD", self._keys.queue, score or 0, job_id))

    async def remove(self, job_id: str) -> None:
        await self._do(
            ("HDEL", self._keys.claimed, job_id, f"{job_id}:score"),
            ("HDEL", self._keys.claim_owners, job_id),
            ("ZREM", self._keys.claims_idx, job_id),
        )

    async def remove_waiting(self, job_id: str) -> None:
        await self._do(("ZREM", self._keys.queue, job_id))

    async def set_lease(self, job_id: str, milliseconds: int = 600_000) -> None:
        now = self._clock() if self._clock else await server_ms(self._link)
        await self._do(
            ("HSET", self._keys.claim_owners, job_id, "seed-relay"),
            ("ZADD", self._keys.claims_idx, "XX", now + milliseconds, job_id),
        )

    async def delete_lease(self, job_id: str) -> None:
        await self._do(
            ("HDEL", self._keys.claim_owners, job_id), ("ZADD", self._keys.claims_idx, "XX", 0, job_id)
        )  # fmt: skip

    async def delete_record(self, job_id: str) -> None:
        await self._do(("DEL", job(job_id)))

    async def push_processing(self, job_id: str) -> None:
        await self._do(("ZADD", self._keys.claims_idx, 0, job_id))

    async def _do(self, *commands: tuple[str | int | float, ...]) -> None:
        for reply in await self._link.pipeline(commands):
            assert not isinstance(reply, Exception), reply


class RedisStageOperator(Operator):
    """redis-cli on a pipeline stage's keys, and what a worker of another make does to them (seed 004)."""

    def __init__(self, link: Link, model: str, clock: Callable[[], int] | None = None) -> None:
        self._link = link
        self._keys = QueueKeys(model)
        self._clock = clock

    async def places(self) -> Places:
        keys = self._keys
        waiting, held, paused, delayed, dead = await self._link.pipeline(
            [
                ("ZRANGE", keys.queue, 0, -1),
                ("HKEYS", keys.fetched),
                ("ZRANGE", keys.paused, 0, -1),
                ("ZRANGE", keys.delayed, 0, -1),
                ("LRANGE", keys.stage_dead, 0, -1),
            ]
        )
        return Places(waiting, sorted(held), paused, delayed, dead)

    async def residue(self) -> list[str]:
        keys = self._keys
        allowed = {keys.jobs, keys.outbox, keys.state, keys.bell, f"{keys.bell}:listeners"}
        found: list[str] = [
            *await self._link.call("KEYS", f"{keys.base}:*"),
            *await self._link.call("KEYS", f"{keys.queue}*"),
            *await self._link.call("KEYS", keys.fetched),
        ]
        return sorted(key for key in found if key not in allowed)

    async def pop(self) -> str | None:
        found = scored(await self._link.call("ZRANGE", self._keys.queue, 0, 0, "WITHSCORES"))
        if not found:
            return None
        job_id, score = found[0]
        await self._do(("ZREM", self._keys.queue, job_id), self._entry(job_id, score=f"{score:.0f}"))
        return job_id

    def _entry(self, job_id: str, *, started: str = "0", score: str = "0") -> tuple[str, ...]:
        text = json.dumps({"worker": "seed", "started": started, "score": score})
        return "HSET", self._keys.fetched, job_id, text

    async def _score(self, job_id: str) -> str:
        text = await self._link.call("HGET", self._keys.fetched, job_id)
        return str(json.loads(text)["score"]) if text else "0"

    async def _last(self) -> str:
        (job_id,) = await self._link.call("HKEYS", self._keys.fetched)
        return job_id

    async def offer_again(self) -> None:
        job_id = await self._last()
        await self._do(("ZADD", self._keys.queue, await self._score(job_id), job_id))

    async def move_back(self, job_id: str = "") -> None:
        job_id = job_id or await self._last()
        score = await self._score(job_id)
        await self.remove(job_id)
        await self._do(("ZADD", self._keys.queue, score, job_id))

    async def remove(self, job_id: str) -> None:
        await self._do(("HDEL", self._keys.fetched, job_id))

    async def remove_waiting(self, job_id: str) -> None:
        await self._do(("ZREM", self._keys.queue, job_id))

    async def set_lease(self, job_id: str, milliseconds: int = 600_000) -> None:
        now = self._clock() if self._clock else await server_ms(self._link)
        started = f"{(now + milliseconds - 90_000) / 1000:.3f}"
        await self._do(self._entry(job_id, started=started, score=await self._score(job_id)))

    async def delete_lease(self, job_id: str) -> None:
        await self._do(self._entry(job_id, score=await self._score(job_id)))

    async def delete_record(self, job_id: str) -> None:
        await self._do(("DEL", job(job_id)))

    async def push_processing(self, job_id: str) -> None:
        await self._do(self._entry(job_id))

    async def _do(self, *commands: tuple[str | int | float, ...]) -> None:
        for reply in await self._link.pipeline(commands):
            assert not isinstance(reply, Exception), reply


class RedisStreamOperator(Operator):
    """redis-cli on the stream transport's keys, and what a worker of another make does to them (seed 003)."""

    def __init__(self, link: Link, model: str) -> None:
        self._link = link
        self._keys = QueueKeys(model)

    async def places(self) -> Places:
        pending: list[str] = []
        processing: list[str] = []
        for stream in self._keys.lanes:
            held = {one[0]: one[1] for one in await self._group("XPENDING", stream, "workers", "-", "+", 1000)}
            rows = [(entry, *await self._own(stream, entry, flat)) for entry, flat in await self._all(stream)]
            pending += [one for entry, one, own in rows if own and held.get(entry) == "released"]
            pending += [one for entry, one, own in rows if own and entry not in held]
            processing += [one for entry, one, _ in rows if held.get(entry, "released") != "released"]
        keys = self._keys
        paused, delayed = [await self._link.call("ZRANGE", key, 0, -1) for key in (keys.paused, keys.delayed)]
        dead = [fields_of(flat)["job_id"] for _, flat in await self._all(keys.stream_dead)]
        return Places(pending, processing, paused, delayed, dead)

    async def _all(self, stream: str) -> list[tuple[str, Any]]:
        return await self._link.call("XRANGE", stream, "-", "+")

    async def _own(self, stream: str, entry: str, flat: Any) -> tuple[str, bool]:
        job_id = fields_of(flat)["job_id"]
        known = await self._link.call("HGET", self._keys.entries, job_id)
        return job_id, known == f"{stream.removeprefix(self._keys.base)} {entry}"

    async def _drop(self, stream: str, entry: str) -> None:
        """What a worker does with litter."""
        _ = await self._link.call("XACK", stream, "workers", entry)
        _ = await self._link.call("XDEL", stream, entry)
        _ = await self._link.call("SREM", self._keys.litter, f"{stream.removeprefix(self._keys.base)} {entry}")

    async def _group(self, *command: str | int) -> Any:
        (reply,) = await self._link.pipeline([command])
        return [] if isinstance(reply, Exception) else reply

    async def residue(self) -> list[str]:
        keys = self._keys
        kept = {*keys.lanes, keys.litter, keys.stream_bell, f"{keys.stream_bell}:listeners", keys.stream_dead}
        found: list[str] = await self._link.call("KEYS", f"{keys.base}:*")
        left = {
            key.removeprefix(f"{keys.base}:") for key in found if key not in kept | {keys.jobs, keys.outbox, keys.state}
        }
        held = [one for stream in keys.lanes for one in await self._group("XPENDING", stream, "workers", "-", "+", 9)]
        return sorted(left) + [str(one) for one in held]

    async def pop(self) -> str | None:
        for stream in self._keys.lanes:
            back = await self._group("XPENDING", stream, "workers", "-", "+", 1, "released")
            if back:
                found = await self._link.call("XCLAIM", stream, "workers", "claimed", 0, back[0][0])
                return fields_of(found[0][1])["job_id"]
            while found := await self._group(
                "XREADGROUP", "GROUP", "workers", "claimed", "COUNT", 1, "STREAMS", stream, ">"
            ):
                ((entry, flat),) = next(iter(found.values())) if isinstance(found, dict) else found[0][1]
                job_id, own = await self._own(stream, entry, flat)
                if own:
                    return job_id
                await self._drop(stream, entry)
        return None

    async def _at(self, job_id: str) -> tuple[str, str]:
        lane, entry = (await self._link.call("HGET", self._keys.entries, job_id)).split(" ")
        return f"{self._keys.base}{lane}", entry

    async def move_back(self, job_id: str = "") -> None:
        if not job_id:
            (job_id,) = (await self.places()).processing
        stream, entry = await self._at(job_id)
        _ = await self._link.call("XCLAIM", stream, "workers", "released", 0, entry, "JUSTID")

    async def offer_again(self) -> None:
        raise AssertionError("the lease of an entry is part of it: no capability detached-lease")

    async def remove(self, job_id: str) -> None:
        stream, entry = await self._at(job_id)
        _ = await self._link.call("XACK", stream, "workers", entry)
        _ = await self._link.call("XDEL", stream, entry)

    async def remove_waiting(self, job_id: str) -> None:
        stream, entry = await self._at(job_id)
        _ = await self._link.call("XDEL", stream, entry)

    async def set_lease(self, job_id: str, milliseconds: int = 600_000) -> None:
        stream, entry = await self._at(job_id)
        _ = await self._link.call("XCLAIM", stream, "workers", "seed", 0, entry, "JUSTID")

    async def delete_lease(self, job_id: str) -> None:
        stream, entry = await self._at(job_id)
        held = await self._group("XPENDING", stream, "workers", entry, entry, 1)
        if held and held[0][1] == "seed":
            _ = await self._link.call("XCLAIM", stream, "workers", "seed", 0, entry, "IDLE", 600_000, "JUSTID")

    async def delete_record(self, job_id: str) -> None:
        _ = await self._link.call("DEL", job(job_id))

    async def push_processing(self, job_id: str) -> None:
        stream = self._keys.lanes[1]
        entry = await self._link.call("XADD", stream, "*", "job_id", job_id)
        _ = await self._link.call("HSET", self._keys.entries, job_id, f":stream {entry}")
        # Whatever stands before it is delivered first: litter goes, and what waits goes on waiting.
        for other, flat in await self._all(stream):
            if not await self._group("XPENDING", stream, "workers", other, other, 1):
                await self._group("XREADGROUP", "GROUP", "workers", "claimed", "COUNT", 1, "STREAMS", stream, ">")
                if other != entry and (await self._own(stream, other, flat))[1]:
                    _ = await self._link.call("XCLAIM", stream, "workers", "released", 0, other, "JUSTID")
                elif other != entry:
                    await self._drop(stream, other)


def operator_of(transport: str, link: Link, model: str, clock: Callable[[], int] | None = None) -> Operator:
    """Hands on a queue of this transport; ``clock`` is its queue's."""
    if transport == "list":
        return RedisListOperator(link, model)
    if transport == "stream":
        return RedisStreamOperator(link, model)
    if transport == "stage":
        return RedisStageOperator(link, model, clock)
    return RedisSortedSetOperator(link, model, clock)


async def live_statuses(stand: Stand, job_ids: list[str]) -> list[Status]:
    """The status of each job."""
    return [Status((await stand.broker.get(job_id)).status) for job_id in job_ids]
