"""Kept answers on Redis: bodies on a server of their own, and forgetting in steps that hold nobody up."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from queuecore.redis import RedisQueue
from queuecore.redis.client import Link
from queuecore.response_cache import cache_key, endpoint_prefix
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess

pytestmark = pytest.mark.anyio
MANY = 100_000
LONGEST_MICROSECONDS = 5_000  # of 99 steps in 100: one alone may meet a busy machine


@pytest.fixture
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as process:
        yield process


def command_stats(text: str) -> dict[str, dict[str, float]]:
    """``INFO commandstats``: command -> name -> value."""
    rows = (line.split(":", 1) for line in text.splitlines() if line.startswith("cmdstat_"))
    return {
        name.removeprefix("cmdstat_"): {one.split("=")[0]: float(one.split("=")[1]) for one in values.split(",")}
        for name, values in rows
    }


def latencies(text: str) -> dict[str, float]:
    """``INFO latencystats``: command -> its 99th percentile in us."""
    rows = (line.split(":", 1) for line in text.splitlines() if line.startswith("latency_percentiles_usec_"))
    return {
        name.removeprefix("latency_percentiles_usec_"): float(values.split("p99=")[1].split(",")[0])
        for name, values in rows
    }


@requirement("cache:clear:bounded-steps")
async def test_forgetting_100_000_answers_takes_many_short_steps(server: ValkeyProcess) -> None:
    common = CommonSettings(redis_url=Secret(server.url))
    link = Link(common, name="test")
    queue = RedisQueue(common, name="test")
    prefix = endpoint_prefix("a")
    for at in range(0, MANY, 1000):
        _ = await link.pipeline([("SET", f"{prefix}{number}", "j" * 36) for number in range(at, at + 1000)])
    kept = cache_key("b", [])
    await queue.cache.put(kept, "body", keep_ms=60_000)
    _ = await link.call("SET", "job:1", "not the cache's")
    _ = await link.call("CONFIG", "RESETSTAT")

    removed = await queue.cache.clear(prefix)

    assert removed == MANY
    assert await queue.cache.get(kept) == "body"
    assert await link.call("EXISTS", "job:1") == 1
    stats = command_stats(await link.call("INFO", "commandstats"))
    assert stats["unlink"]["calls"] >= MANY // 1000
    slow = latencies(await link.call("INFO", "latencystats"))
    assert slow["scan"] < LONGEST_MICROSECONDS
    assert slow["unlink"] < LONGEST_MICROSECONDS
    assert "keys" not in stats
    assert await queue.cache.clear() == 1
    await queue.aclose()
    await link.aclose()


@requirement("cache:read:never-in-the-way")
async def test_bodies_are_on_the_caches_server_and_pointers_on_the_queues(server: ValkeyProcess) -> None:
    common = CommonSettings(redis_url=Secret(server.url))
    apart = msgspec.structs.replace(common, cache_redis_url=Secret(f"{server.url.rsplit('/', 1)[0]}/1"))
    queue, link = RedisQueue(apart, name="test"), Link(common, name="test")
    key = cache_key("a", "b")
    await queue.cache.put(key, "body", keep_ms=60_000)
    _ = await link.call("SET", cache_key("c", "d"), "pointer")

    assert await queue.cache.get(key) == "body"
    assert await link.call("EXISTS", key) == 0
    assert await queue.cache.clear() == 2
    assert await queue.cache.get(key) is None
    await queue.aclose()
    await link.aclose()
