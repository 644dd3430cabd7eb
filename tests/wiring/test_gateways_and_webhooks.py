"""Three gateways of which one is killed every second, and 300 verdicts: each is told, under one id (G9)."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
import pytest

from queuecore.broker import Result, Worker
from queuecore.clock import monotonic
from queuecore.names import new_claim_id
from queuecore.testing.clock import eventually
from queuecore.testing.raw_http import RawExchange, RawHttpServer
from queuecore.testing.requirement import requirement
from queuecore.testing.yard import Served, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]

JOBS: Final = 300
PER_SECOND: Final = 30
GATEWAYS: Final = 3


class Receiver:
    """Counts what it is told, by webhook-id."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        self.bodies: dict[str, set[bytes]] = {}

    async def hear(self, exchange: RawExchange) -> None:
        body = await exchange.read_body()
        event_id = exchange.header("webhook-id") or ""
        self.told[event_id] += 1
        self.bodies.setdefault(event_id, set()).add(body)
        await exchange.answer("204 No Content")


@pytest.mark.timeout(400)
@requirement("webhook:gateway-killed:each-event-told")
async def test_every_verdict_is_told_under_one_id_while_a_gateway_is_killed_every_second(
    yard: Yard, tell: Callable[[str], None]
) -> None:
    receiver = Receiver()
    async with RawHttpServer(receiver.hear) as server:

        async def gateway() -> Served:
            return await yard.gateway(GATEWAY_WEBHOOK_ALLOW="127.0.0.1")

        gateways = [asyncio.create_task(gateway()) for _ in range(GATEWAYS)]
        _ = await asyncio.wait(gateways)
        working = asyncio.create_task(verdicts(yard, f"{server.url}/hook"))
        kills = 0
        while not working.done():
            _ = await asyncio.wait({working}, timeout=1)
            oldest = await gateways.pop(0)
            oldest.signal(signal.SIGKILL)
            kills += 1
            gateways.append(asyncio.create_task(gateway()))
        expected = await working
        _ = await asyncio.gather(*gateways)
        begun = monotonic()
        # What a killed gateway had claimed comes up again: an attempt after its lease, an outbox entry after a minute.
        assert await eventually(lambda: set(receiver.told) >= expected, within=150), expected - set(receiver.told)
        tell(
            f"{JOBS} verdicts, {kills} gateways killed: all told {monotonic() - begun:.0f} s after the last kill, "
            f"{sum(receiver.told.values()) - JOBS} of them twice"
        )

    assert set(receiver.told) == expected
    assert kills >= JOBS / PER_SECOND / 2
    assert {len(bodies) for bodies in receiver.bodies.values()} == {1}, "every attempt sends the same bytes"
    data = [msgspec.json.decode(next(iter(bodies)))["data"] for bodies in receiver.bodies.values()]
    assert {one["status"] for one in data} == {"completed"}


async def verdicts(yard: Yard, url: str) -> set[str]:
    """Jobs that are completed as fast as they come, evenly over time; the ids of their events."""
    expected: set[str] = set()
    for number in range(JOBS):
        job = await yard.prepare()
        _ = await yard.broker.submit(msgspec.structs.replace(job, fields={**job.fields, "callback_url": url}))
        claim = await yard.broker.claim(Worker("w"), new_claim_id())
        assert claim is not None
        _ = await yard.broker.complete(claim, Result("nowhere", 1, "text/plain", "00"))
        expected.add(claim.record.event_id)
        if number % PER_SECOND == PER_SECOND - 1:
            _ = await asyncio.sleep(0.9)  # the pace of the verdicts, against that of the kills
    return expected
