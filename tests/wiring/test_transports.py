"""The transports beside the list, with real relays: what their seeds' own bug lists name."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from queuecore.config import Transport
from queuecore.testing.clock import eventually
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]
CONTENT = b"a recording" * 100
OTHERS: tuple[Transport, ...] = ("sortedset", "stream")


async def running(yard: Yard, job_id: str) -> None:
    async def look() -> bool:
        return (await yard.mock.runs())[job_id] == 1

    _ = await eventually(look, within=20)


@requirement("transport:renew:until-the-drain-ends")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("transport", OTHERS)
async def test_heartbeats_go_on_until_the_drain_ends(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path, transport: Transport
) -> None:
    yard = Yard(valkey, mock, tmp_path, lease_seconds=3, transport=transport)
    await yard.flush()
    reaper = await yard.ready_reaper(REAPER_INTERVAL_SECONDS="0.5")
    job_id = await yard.submit(CONTENT, mock_delay_seconds=7)
    relay = await yard.relay(RELAY_DRAIN_SECONDS="30")
    await running(yard, job_id)
    relay.signal(signal.SIGTERM)
    assert await relay.ended() == 0
    record = await yard.check_one_good_end(job_id, CONTENT)
    assert (record.reaps, record.claims) == (0, 1)
    reaper.signal(signal.SIGTERM)
    assert await reaper.ended() == 0
    await yard.aclose()


@requirement("transport:complete:redis-away")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("transport", OTHERS)
async def test_redis_away_while_a_result_waits_to_be_acknowledged_leaves_one_verdict(
    mock: Mock, tmp_path: Path, transport: Transport
) -> None:
    with ValkeyProcess(appendonly="always") as server:
        yard = Yard(server, mock, tmp_path, lease_seconds=3, transport=transport)
        job_id = await yard.submit(CONTENT, mock_delay_seconds=2)
        relay = await yard.relay()
        await running(yard, job_id)
        server.kill()

        async def answered() -> bool:
            return [one["state"] for one in await mock.requests() if one["job_id"] == job_id] == ["answered"]

        _ = await eventually(answered, within=20)
        _ = await relay.said("connection.lost")
        _ = server.start()
        _ = await relay.ended()
        if not (await yard.status(job_id)).terminal:
            await yard.reap_the_dead()
            assert await (await yard.relay()).ended() == 0
        _ = await yard.check_one_good_end(job_id, CONTENT)
        await yard.aclose()


@requirement("transport:reap:removed-model")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("transport", OTHERS)
async def test_the_claims_of_a_model_that_left_the_configuration_are_reclaimed(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path, transport: Transport
) -> None:
    yard = Yard(valkey, mock, tmp_path / "gone", model="gone", transport=transport)
    await yard.flush()
    job_id = await yard.submit(CONTENT, mock_delay_seconds=30)
    relay = await yard.relay()
    await running(yard, job_id)
    relay.signal(signal.SIGKILL)
    _ = await relay.ended()
    later = Yard(valkey, mock, tmp_path / "later", model="m")
    reaper = await later.ready_reaper(REAPER_INTERVAL_SECONDS="0.5", REAPER_DEATH_GRACE_SECONDS="0.5")

    async def reclaimed() -> bool:
        return (await yard.status(job_id)).reaps == 1

    _ = await eventually(reclaimed, within=20)
    assert (await reaper.said("queue.forgotten"))["model"] == "gone"
    await later.aclose()
    await yard.aclose()


@pytest.mark.timeout(120)
async def test_the_seeds_metrics_count_claims_redeliveries_and_duplicates(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path
) -> None:
    yard = Yard(valkey, mock, tmp_path, transport="sortedset")
    await yard.flush()
    job_id = await yard.submit(CONTENT, mock_delay_seconds=30)
    relay = await yard.relay()
    await running(yard, job_id)
    reaper = await yard.ready_reaper(REAPER_INTERVAL_SECONDS="0.5", REAPER_DEATH_GRACE_SECONDS="0.5")

    async def shows(name: str, value: float) -> bool:
        _, text = await reaper.get("/metrics")
        found = re.search(rf'^{name}{{model="m"}} (\S+)$', text, re.MULTILINE)
        return found is not None and float(found[1]) == value

    async def claimed() -> bool:
        return await shows("async_claim_depth", 1)

    async def expired() -> bool:
        return await shows("async_claims_expired_total", 1)

    _ = await eventually(claimed, within=20)
    assert await shows("async_duplicate_results_suppressed_total", 0)
    relay.signal(signal.SIGKILL)
    _ = await relay.ended()
    _ = await eventually(expired, within=20)
    await yard.aclose()
