"""200 jobs on eight relays: with one of them killed every 200 ms, and with nobody killed but three reapers at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest

from queuecore.job import JobRecord, Status
from queuecore.redis import RedisQueue
from queuecore.testing.clock import eventually
from queuecore.testing.fleet import Fleet
from queuecore.testing.requirement import requirement
from queuecore.testing.yard import Yard
from reaper.settings import ReaperSettings
from reaper.upkeep import Upkeep

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]

JOBS: Final = 200
RELAYS: Final = 8
MAX_REAPS: Final = 3  # the default


async def submitted(yard: Yard, **params: object) -> dict[str, bytes]:
    contents = [f"job number {number}".encode() for number in range(JOBS)]
    return {await yard.submit(content, **params): content for content in contents}


async def records(yard: Yard, jobs: dict[str, bytes]) -> list[JobRecord]:
    found = await yard.queue.server.records(list(jobs))
    return [record for record in found.values() if record is not None]


async def all_over(yard: Yard, jobs: dict[str, bytes]) -> bool:
    return all(record.terminal for record in await records(yard, jobs))


@pytest.mark.timeout(300)
@requirement("load:kill:every-job-ends", "poison:reap:healthy-jobs-run")
async def test_every_job_ends_once_while_a_relay_is_killed_every_200_ms(
    yard: Yard, tell: Callable[[str], None]
) -> None:
    jobs = await submitted(yard, mock_delay_seconds=0.1)
    _ = await yard.ready_reaper()
    kills = 0
    async with Fleet(yard, RELAYS, RELAY_MAX_JOBS="0", RELAY_QUEUE_POP_TIMEOUT_SECONDS="10") as fleet:
        over = asyncio.create_task(eventually(lambda: all_over(yard, jobs), within=240, every=0.2))
        while not over.done():
            _ = await asyncio.wait({over}, timeout=0.2)
            fleet.kill_one()
            kills += 1
        _ = over.result()
    ended = await records(yard, jobs)
    runs = await yard.mock.runs()
    assert len(ended) == JOBS
    for record in ended:
        lost = record.status == Status.FAILED and record.error_code == "worker_lost" and record.reaps == MAX_REAPS + 1
        assert record.status == Status.COMPLETED or lost, record
        assert runs[record.id] <= record.claims <= MAX_REAPS + 1, (record, runs[record.id])
    assert sorted(await yard.events()) == sorted(record.event_id for record in ended)
    for record in ended:
        if record.status == Status.COMPLETED:
            await yard.check_result(record, jobs[record.id])
    assert await yard.operator.residue() == []
    assert sum(record.reaps for record in ended) >= 5, "kills that hit nobody at work prove nothing"
    tell(f"{kills} kills, {sum(record.reaps for record in ended)} mid-job, exit codes {dict(fleet.codes)}")


@asynccontextmanager
async def upkeep_every_10_ms(yard: Yard, name: str) -> AsyncGenerator[Upkeep]:
    """All of a reaper's passes on connections of its own."""
    queue = RedisQueue(yard.common, name=name)
    broker = queue.broker(yard.model, yard.config)
    upkeep = Upkeep(
        ReaperSettings(interval_seconds=0.01), [broker], server=queue.server, signals=queue.signals, store=None
    )
    stop = asyncio.Event()
    running = asyncio.create_task(upkeep.run(stop))
    try:
        yield upkeep
        assert not running.done()
    finally:
        stop.set()
        await running
        await queue.aclose()


@pytest.mark.timeout(180)
@requirement("claim:claim:no-crash-one-run")
async def test_without_kills_every_job_runs_exactly_once_while_three_reapers_look_every_10_ms(yard: Yard) -> None:
    jobs = await submitted(yard)
    async with AsyncExitStack() as stack:
        reapers = [await stack.enter_async_context(upkeep_every_10_ms(yard, f"reaper-{one}")) for one in range(3)]
        # Each place of the fleet runs a process for a part of the jobs, then a fresh one.
        fleet = await stack.enter_async_context(Fleet(yard, RELAYS, RELAY_MAX_JOBS="10"))
        _ = await eventually(lambda: all_over(yard, jobs), within=120, every=0.1)
        assert all(reaper.health().live for reaper in reapers)
    ended = await records(yard, jobs)
    runs = await yard.mock.runs()
    assert {record.status for record in ended} == {Status.COMPLETED}
    assert {(record.claims, record.reaps, runs[record.id]) for record in ended} == {(1, 0, 1)}
    assert sorted(await yard.events()) == sorted(record.event_id for record in ended)
    assert await yard.operator.residue() == []
    assert fleet.codes.keys() <= {0}, fleet.codes
