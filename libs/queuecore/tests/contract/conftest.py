"""One stand per broker: the same tests hold for the specification and for every transport, RESP2 and RESP3."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from queuecore.broker import QueueLimits, Retention
from queuecore.redis.client import Link
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import ManualClock
from queuecore.testing.memory import MemoryQueue
from queuecore.testing.operator import MemoryOperator, Stand, operator_of
from queuecore.testing.servers import ValkeyProcess, redis7_binary
from queuecore.testing.stands import BROKERS, ORDERS, Stands

LIMITS = QueueLimits(
    lease_ms=60_000, max_pending=5, max_reap_attempts=3, pending_max_age_ms=86_400_000, retention=Retention()
)
KINDS = [
    *(f"memory-{order}" for order in ORDERS),
    *(f"{transport}-resp{version}" for transport in BROKERS for version in (2, 3)),
    "priority-resp3",  # the sorted set's other order
    *(f"{transport}-redis7-resp{version}" for transport in BROKERS for version in (2, 3)),
]


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as server:
        yield server


@pytest.fixture(scope="session")
def redis7() -> Iterator[ValkeyProcess]:
    with ValkeyProcess(binary=redis7_binary()) as server:
        yield server


@pytest.fixture(params=KINDS)
async def stands(request: pytest.FixtureRequest) -> AsyncIterator[Stands]:
    kind = str(request.param)
    if kind.startswith("memory"):
        yield Stands(kind, None, LIMITS)
        return
    server: ValkeyProcess = request.getfixturevalue("redis7" if "redis7" in kind else "valkey")
    link = Link(CommonSettings(redis_url=Secret(server.url)), name="contract", protocol=int(kind[-1]))
    _ = await link.call("FLUSHALL")
    made = Stands(kind, link, LIMITS)
    yield made
    await made.aclose()
    await link.aclose()


@pytest.fixture(params=KINDS)
async def stand(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    one, _, two = str(request.param).partition("-")
    clock = ManualClock()
    if one == "memory":
        queue = MemoryQueue(clock)
        broker = queue.broker("m", LIMITS._replace(order=ORDERS[two]))
        yield Stand(broker, MemoryOperator(queue, "m"), clock)
        return
    server: ValkeyProcess = request.getfixturevalue("redis7" if "redis7" in two else "valkey")
    link = Link(CommonSettings(redis_url=Secret(server.url)), name="contract", protocol=int(two[-1]))
    _ = await link.call("FLUSHALL")
    limits = LIMITS._replace(order=ORDERS[one])
    transport = "sortedset" if one == "priority" else one
    redis_broker = BROKERS[transport](link, "m", limits, clock=clock)
    operator = operator_of(transport, link, "m", clock)
    yield Stand(redis_broker, operator, clock)
    await redis_broker.aclose()
    await link.aclose()
