"""Limits with real relays: killed holders of slots, two models of one provider, tokens that the answer names."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from queuecore.clock import monotonic
from queuecore.config import Transport, parse_config
from queuecore.job import JobRecord
from queuecore.testing.clock import eventually
from queuecore.testing.fleet import Fleet
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]

LEASE_SECONDS: Final = 6
LIMITS: Final = """    provider: acme
providers: {acme: {concurrent: 5}}
"""


class Watch:
    """How many of the mock's requests run at once, looked at again and again."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self.now = self.most = 0

    async def run(self) -> None:
        while True:
            states = [one["state"] for one in await self._yard.mock.requests()]
            self.now = sum(state in {"receiving", "running", "answering"} for state in states)
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.05)


async def slots_held(yard: Yard) -> int:
    seconds, micros = await yard.link.call("TIME")
    now = int(seconds) * 1000 + int(micros) // 1000
    return await yard.link.call("ZCOUNT", "ratelimit:acme:running", f"({now}", "+inf")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("transport", ["list", "sortedset", "stream"])
@requirement("gate:slot:lease")
async def test_five_at_once_although_their_holders_are_killed_and_five_again_within_a_lease(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path, transport: Transport, tell: Callable[[str], None]
) -> None:
    yard = Yard(valkey, mock, tmp_path, lease_seconds=LEASE_SECONDS, transport=transport, limits=LIMITS)
    await yard.flush()
    jobs = [await yard.submit(f"job {number}".encode(), mock_delay_seconds=1.5) for number in range(24)]
    _ = await yard.ready_reaper(REAPER_INTERVAL_SECONDS="0.5")
    watch = Watch(yard)
    watching = asyncio.create_task(watch.run())
    recoveries: list[float] = []

    async def five() -> bool:
        return watch.now == 5

    async def all_over() -> bool:
        found: list[JobRecord | None] = list((await yard.queue.server.records(jobs)).values())
        return all(record is not None and record.terminal for record in found)

    async with Fleet(yard, 8, RELAY_MAX_JOBS="0", RELAY_QUEUE_POP_TIMEOUT_SECONDS="30") as fleet:
        for _ in range(2):
            _ = await eventually(five, within=30)
            killed_at = monotonic()
            for relay in list(fleet.alive):
                relay.signal(signal.SIGKILL)

            async def empty() -> bool:
                return watch.now < 5

            _ = await eventually(empty, within=5)
            _ = await eventually(five, within=LEASE_SECONDS + 4)
            recoveries.append(monotonic() - killed_at)
        _ = await eventually(all_over, within=90, every=0.2)
        assert watch.most == 5
        assert await eventually(lambda: slots_are(yard, 0), within=5)
    _ = watching.cancel()
    for job_id in jobs:
        assert (await yard.status(job_id)).failures == 0
    tell(f"{transport}: back to five after {', '.join(f'{one:.1f}' for one in recoveries)} s, lease {LEASE_SECONDS} s")
    await yard.aclose()


async def slots_are(yard: Yard, count: int) -> bool:
    return await slots_held(yard) == count


@pytest.mark.timeout(120)
@requirement("gate:provider:shared-by-models")
async def test_relays_of_two_models_share_their_providers_limit(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path
) -> None:
    limits = LIMITS.replace("concurrent: 5", "concurrent: 1, requests_per_minute: 100")
    first = Yard(valkey, mock, tmp_path / "a", model="a", limits=limits)
    second = Yard(valkey, mock, tmp_path / "b", model="b", transport="stream", limits=limits)
    await first.flush()
    jobs = [(yard, await yard.submit(b"x", mock_delay_seconds=0.5)) for yard in (first, second) for _ in range(3)]
    _ = await first.ready_reaper(REAPER_INTERVAL_SECONDS="0.5")
    watch = Watch(first)
    watching = asyncio.create_task(watch.run())
    settings = {"RELAY_MAX_JOBS": "0", "RELAY_QUEUE_POP_TIMEOUT_SECONDS": "20"}
    async with Fleet(first, 2, **settings), Fleet(second, 2, **settings):
        for yard, job_id in jobs:
            assert (await yard.finished(job_id, within=60)).status == "completed"
    _ = watching.cancel()
    assert watch.most == 1
    counters = [key for key in await first.link.call("KEYS", "ratelimit:acme:*") if key.rpartition(":")[2].isdigit()]
    assert sum([int(await first.link.call("GET", key)) for key in counters]) == len(jobs)
    await first.aclose()
    await second.aclose()


@pytest.mark.timeout(60)
async def test_a_relay_reads_its_gates_and_an_unknown_one_stops_it(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path
) -> None:
    yard = Yard(valkey, mock, tmp_path, limits="    gates: [{type: constant, verdict: drop, reason: retired}]\n")
    await yard.flush()
    job_id = await yard.submit(b"x")
    relay = await yard.relay()
    assert await relay.ended() == 0
    record = await yard.status(job_id)
    assert (record.status, record.error_code, record.error_message) == ("failed", "gate_dropped", "retired")
    text = yard.models_file.read_text("utf-8")
    assert parse_config(text)
    _ = yard.models_file.write_text(
        text.replace("type: constant, verdict: drop, reason: retired", "type: quota"), "utf-8"
    )
    relay = await yard.relay()
    assert await relay.ended() == 1
    assert "models.m.gates[0].type: Invalid value 'quota'" in relay.log.read_text("utf-8")
    await yard.aclose()
