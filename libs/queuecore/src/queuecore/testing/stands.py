"""Queues of one kind side by side: what gates share, over memory and every transport."""

from __future__ import annotations

from typing import Final

from queuecore.broker import Order, QueueLimits
from queuecore.gates import Gate, Window
from queuecore.redis.broker import RedisBroker
from queuecore.redis.client import Link
from queuecore.redis.list_transport import ListBroker
from queuecore.redis.sortedset_transport import SortedSetBroker
from queuecore.redis.stage_transport import StageBroker
from queuecore.redis.stream_transport import StreamBroker
from queuecore.testing.clock import ManualClock
from queuecore.testing.memory import MemoryQueue
from queuecore.testing.operator import MemoryOperator, Stand, operator_of

ORDERS: Final[dict[str, Order]] = {
    "list": "arrival", "sortedset": "deadline", "priority": "priority", "stream": "lanes", "stage": "stage"
}  # fmt: skip
BROKERS: Final[dict[str, type[RedisBroker]]] = {
    "list": ListBroker, "sortedset": SortedSetBroker, "stream": StreamBroker, "stage": StageBroker
}  # fmt: skip


class Stands:
    """Queues of one kind, as many as a test needs: they share the server, the clock and what gates count with."""

    def __init__(self, kind: str, link: Link | None, limits: QueueLimits) -> None:
        self.kind, _, self.variant = kind.partition("-")
        self.link = link
        self.limits = limits._replace(max_pending=1_000)
        self.clock = ManualClock()
        self.memory = MemoryQueue(self.clock)
        self._brokers: list[RedisBroker] = []

    def make(self, gate: Gate | None = None, model: str = "m") -> Stand:
        order = self.variant if self.link is None else self.kind
        limits = self.limits._replace(order=ORDERS[order], gate=gate)
        if self.link is None:
            broker = self.memory.broker(model, limits)
            return Stand(broker, MemoryOperator(self.memory, model), self.clock)
        transport = "sortedset" if self.kind == "priority" else self.kind
        redis_broker = BROKERS[transport](self.link, model, limits, clock=self.clock)
        self._brokers.append(redis_broker)
        return Stand(redis_broker, operator_of(transport, self.link, model, self.clock), self.clock)

    async def spoil(self, key: str) -> None:
        """Something else lies where a gate counts."""
        if self.link is None:
            self.memory.ledger.spoilt.add(key)
        else:
            _ = await self.link.call("DEL", key)
            _ = await self.link.call("RPUSH", key, "no counter")

    async def mend(self, key: str) -> None:
        if self.link is None:
            self.memory.ledger.spoilt.discard(key)
        else:
            _ = await self.link.call("DEL", key)

    async def add_to_counter(self, key: str, amount: int) -> None:
        """What another worker of the seed's protocol does."""
        if self.link is None:
            self.memory.ledger.windows.setdefault(key, Window()).count += amount
        else:
            _ = await self.link.call("INCRBY", key, amount)
            _ = await self.link.call("EXPIRE", key, 120)

    async def counter(self, key: str) -> int | None:
        if self.link is None:
            window = self.memory.ledger.windows.get(key)
            return None if window is None else window.count
        found = await self.link.call("GET", key)
        return None if found is None else int(found)

    async def forget_counters(self) -> None:
        """Their TTL ended."""
        self.memory.ledger.windows.clear()
        for key in await self.keys() if self.link else []:
            if self.link and not key.endswith(("running", "waiting")):
                _ = await self.link.call("DEL", key)

    async def keys(self) -> list[str]:
        return [] if self.link is None else sorted(await self.link.call("KEYS", "ratelimit:*"))

    async def aclose(self) -> None:
        for broker in self._brokers:
            await broker.aclose()
