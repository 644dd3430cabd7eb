"""A limit that cannot be asked lets nobody through: the counters are where the queue is."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from queuecore.broker import Failure, NewJob, QueueLimits, Result, Worker
from queuecore.errors import BrokerError
from queuecore.gates import Composite, Concurrency, Rate
from queuecore.redis.client import Link
from queuecore.redis.list_transport import ListBroker
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
TIMELINES = Path(__file__).parents[1] / "data" / "json" / "ratelimit_timelines.json"


def timeline(name: str) -> str:
    (found,) = (one["limit"] for one in json.loads(TIMELINES.read_text("utf-8")) if one["id"] == name)
    return found


@pytest.mark.parametrize("value", ["1.5", "many", ""])
async def test_a_counter_that_is_no_number_is_a_fault_and_nothing_is_taken(value: str) -> None:
    gate = Composite(
        (
            Concurrency("acme:concurrent", "ratelimit:acme:running", 3),
            Rate("acme:requests", "ratelimit:acme", 9, 60_000),
        )
    )
    with ValkeyProcess() as server:
        link = Link(CommonSettings(redis_url=Secret(server.url)), name="spoilt")
        broker = ListBroker(link, "m", QueueLimits(gate=gate), clock=lambda: 1_800_000_000_000)
        _ = await broker.submit(NewJob(id="j1", fields={}))
        _ = await link.call("SET", "ratelimit:acme:1800000000", value)
        assert await broker.claim(Worker("w"), "c1") is None
        assert (await broker.counts()).gate_faults == 1
        assert await link.call("KEYS", "ratelimit:*") == ["ratelimit:acme:1800000000"]
        assert (await broker.get("j1")).claims == 0
        await broker.aclose()
        await link.aclose()


@pytest.mark.parametrize("used", [1, 70])
async def test_a_full_server_lets_owners_give_back_what_they_took(used: int) -> None:
    gate = Composite(
        (
            Concurrency("acme:concurrent", "ratelimit:acme:running", 3),
            Rate("acme:tokens", "ratelimit:acme", 500, 60_000, 50, ":tokens"),
        )
    )
    with ValkeyProcess() as server:
        link = Link(CommonSettings(redis_url=Secret(server.url)), name="full")
        broker = ListBroker(link, "m", QueueLimits(gate=gate))
        for number in range(4):
            _ = await broker.submit(NewJob(id=f"j{number}", fields={}))
        claims = [await broker.claim(Worker("w"), f"c{number}") for number in range(4)]
        assert claims[3] is None
        _ = await link.call("CONFIG", "SET", "maxmemory", "1mb")
        first, second, third, _ = claims
        assert first
        assert second
        assert third
        _ = await broker.renew(first)
        assert await broker.complete(first, Result("k", 1, "t/t", "0", tokens=used)) == "completed"
        assert await broker.release(second) == "pending"
        assert await broker.fail(third, Failure("inference_error", "no", retry_in_ms=1)) == "pending"
        assert await link.call("ZCARD", "ratelimit:acme:running") == 0
        await broker.aclose()
        await link.aclose()


async def test_without_redis_a_claim_is_refused_within_a_bounded_time() -> None:
    limit, _, seconds = timeline("r07").partition("/")
    gate = Rate("acme:requests", "ratelimit:acme", int(limit), 1000 * int(seconds.removesuffix("s")))
    with ValkeyProcess() as server:
        link = Link(CommonSettings(redis_url=Secret(server.url)), name="outage")
        broker = ListBroker(link, "m", QueueLimits(gate=gate))
        _ = await broker.submit(NewJob(id="j1", fields={}))
        server.kill()
        with anyio.fail_after(30), pytest.raises(BrokerError):
            _ = await broker.claim(Worker("w"), "c1")
        await broker.aclose()
        await link.aclose()
