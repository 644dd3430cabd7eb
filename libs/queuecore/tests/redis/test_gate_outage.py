"""A limit that cannot be asked lets nobody through: the counters are where the queue is."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from queuecore.broker import NewJob, QueueLimits, Worker
from queuecore.errors import BrokerError
from queuecore.gates import Rate
from queuecore.redis.client import Link
from queuecore.redis.list_transport import ListBroker
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
TIMELINES = Path(__file__).parents[1] / "data" / "json" / "ratelimit_timelines.json"


def timeline(name: str) -> str:
    (found,) = (one["limit"] for one in json.loads(TIMELINES.read_text("utf-8")) if one["id"] == name)
    return found


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
