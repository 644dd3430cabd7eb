"""Budgets: the same for the specification and for Redis (families j1 and j3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from queuecore.bucket import Buckets, Spent
from queuecore.redis import RedisQueue
from queuecore.redis.buckets import RedisBuckets
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.buckets import MemoryBuckets
from queuecore.testing.clock import ManualClock
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


class Stand(NamedTuple):
    buckets: Buckets
    clock: ManualClock

    async def spend(self, cost: int = 1, *, owed: bool = False) -> Spent:
        return await self.buckets.spend("t:requests", cost, capacity=10, window_ms=1_000, owed=owed)


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as valkey:
        yield valkey


@pytest.fixture(params=["memory", "redis"])
async def stand(request: pytest.FixtureRequest, server: ValkeyProcess) -> AsyncIterator[Stand]:
    clock = ManualClock()
    if request.param == "memory":
        yield Stand(MemoryBuckets(clock), clock)
        return
    queue = RedisQueue(CommonSettings(redis_url=Secret(server.url)), name="test")
    link = queue.server._link
    _ = await link.call("FLUSHALL")
    yield Stand(RedisBuckets(link, clock=clock), clock)
    await queue.aclose()


async def test_no_burst_at_the_border_of_a_window(stand: Stand) -> None:
    spent = await asyncio.gather(*(stand.spend() for _ in range(30)))
    assert sum(one.allowed for one in spent) == 10
    stand.clock.advance(100)
    assert [(await stand.spend()).allowed for _ in range(2)] == [True, False]
    refused = await stand.spend()
    assert (refused.remaining, refused.retry_ms) == (0, 100)
    stand.clock.advance(10_000)
    assert [(await stand.spend()).allowed for _ in range(11)] == [True] * 10 + [False]


async def test_what_is_owed_delays_the_next(stand: Stand) -> None:
    assert await stand.spend(25, owed=True) == (True, 0, 0)
    assert await stand.spend() == (False, 0, 1_600)
    stand.clock.advance(1_600)
    assert (await stand.spend()).allowed
