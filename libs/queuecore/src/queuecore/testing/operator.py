"""An operator's hands and a foreign relay's commands on a queue, the same over memory and Redis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from queuecore.broker import Broker
from queuecore.job import Status
from queuecore.redis.client import Link
from queuecore.redis.keys import QueueKeys, job
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
    async def move_back(self) -> None:
        """LMOVE processing pending RIGHT LEFT."""

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


class Stand(NamedTuple):
    """What a contract test gets."""

    broker: Broker
    operator: Operator
    clock: ManualClock


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

    async def move_back(self) -> None:
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

    async def move_back(self) -> None:
        _ = await self._link.call("LMOVE", self._keys.processing, self._keys.pending, "RIGHT", "LEFT")

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


async def live_statuses(stand: Stand, job_ids: list[str]) -> list[Status]:
    """The status of each job."""
    return [Status((await stand.broker.get(job_id)).status) for job_id in job_ids]
