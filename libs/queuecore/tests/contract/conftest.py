"""One stand per broker: the same tests hold for the specification and for every transport, RESP2 and RESP3."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from queuecore.broker import QueueLimits, Retention
from queuecore.redis.client import Link
from queuecore.redis.list_transport import ListBroker
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import ManualClock
from queuecore.testing.memory import MemoryQueue
from queuecore.testing.operator import MemoryOperator, RedisListOperator, Stand
from queuecore.testing.servers import ValkeyProcess

LIMITS = QueueLimits(
    lease_ms=60_000, max_pending=5, max_reap_attempts=3, pending_max_age_ms=86_400_000, retention=Retention()
)


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as server:
        yield server


@pytest.fixture(params=["memory", "list-resp2", "list-resp3"])
async def stand(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    kind: str = request.param
    clock = ManualClock()
    if kind == "memory":
        queue = MemoryQueue(clock)
        broker = queue.broker("m", LIMITS)
        yield Stand(broker, MemoryOperator(queue, "m"), clock)
        return
    server: ValkeyProcess = request.getfixturevalue("valkey")
    link = Link(CommonSettings(redis_url=Secret(server.url)), name="contract", protocol=int(kind[-1]))
    _ = await link.call("FLUSHALL")
    redis_broker = ListBroker(link, "m", LIMITS, clock=clock)
    yield Stand(redis_broker, RedisListOperator(link, "m"), clock)
    await redis_broker.aclose()
    await link.aclose()
