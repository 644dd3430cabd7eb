"""Idle dispatch: from submit to the claim of a worker that waits, each transport beside a raw BLMOVE."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable

from queuecore.broker import NewJob, QueueLimits, Result, Worker
from queuecore.clock import monotonic
from queuecore.redis.broker import RedisBroker
from queuecore.redis.client import Link
from queuecore.redis.list_transport import ListBroker
from queuecore.redis.sortedset_transport import SortedSetBroker
from queuecore.redis.stream_transport import StreamBroker
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import eventually
from queuecore.testing.servers import ValkeyProcess

ROUNDS = 100
RESULT = Result("k", 1, "text/plain", "0" * 64)


async def measure(link: Link, wait: Callable[[], Awaitable[object]], send: Callable[[int], Awaitable[object]]) -> float:
    """The median of ROUNDS, in ms."""
    times: list[float] = []

    async def take() -> float:
        _ = await wait()
        return monotonic()

    async def blocked() -> bool:
        listed = await link.call("CLIENT", "LIST")
        return "cmd=blmove" in listed or "cmd=blpop" in listed

    for number in range(ROUNDS):
        taking = asyncio.create_task(take())
        _ = await eventually(blocked)
        began = monotonic()
        _ = await send(number)
        times.append(1000 * (await taking - began))
    return statistics.median(times)


async def dispatch(link: Link, broker: RedisBroker) -> float:
    """Of one transport."""

    async def wait() -> None:
        claim = await broker.claim(Worker("w"), f"c{monotonic()}", wait_seconds=None)
        assert claim is not None
        _ = await broker.complete(claim, RESULT)

    priority = "false" if broker.transport == "list" else "normal"
    median = await measure(
        link, wait, lambda number: broker.submit(NewJob(id=f"{broker.model}{number}", fields={}, priority=priority))
    )
    await broker.aclose()
    return median


async def main() -> None:
    with ValkeyProcess() as server:
        link = Link(CommonSettings(redis_url=Secret(server.url)), name="bench")
        raw = await measure(
            link,
            lambda: link.call("BLMOVE", "from", "to", "LEFT", "RIGHT", 0, reply_seconds=60),
            lambda number: link.call("RPUSH", "from", number),
        )
        print(f"{'raw BLMOVE':<12} p50 {raw:7.2f} ms")
        limits = QueueLimits()
        for broker in (
            ListBroker(link, "list", limits),
            SortedSetBroker(link, "sortedset", limits._replace(order="deadline")),
            StreamBroker(link, "stream", limits._replace(order="lanes")),
        ):
            median = await dispatch(link, broker)
            print(f"{broker.transport:<12} p50 {median:7.2f} ms  {median / raw:5.1f} x  (claim and verdict included)")
        await link.aclose()


if __name__ == "__main__":
    asyncio.run(main())
