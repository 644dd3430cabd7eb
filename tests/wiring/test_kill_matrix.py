"""SIGKILL before and after every Redis, store and HTTP call of one job; kill -9 of the server at each of them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from queuecore.blobs import BlobStore
from queuecore.config import Transport
from queuecore.testing.clock import eventually
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]
LOOKS: dict[Transport, str] = {
    "list": "redis BLMOVE",
    "sortedset": "redis ZADD",
    "stage": "redis ZADD",
    "stream": "redis ZADD",
}  # how a relay begins to look
CONTENT = b"what the job is about" * 400


async def passed_points(yard: Yard, module: str, **environ: str) -> list[str]:
    """Every point that an undisturbed run passes, in order."""
    log = yard.directory / "points"
    process = await (yard.relay if module == "relay" else yard.reaper)(
        faultpoint=True, FAULT_LOG=str(log), FAULT_AT="", **environ
    )
    if module == "relay":
        assert await process.ended() == 0, process.log.read_text("utf-8")
    return log.read_text("ascii").splitlines()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", LOOKS)
@requirement("run:kill:one-verdict-at-every-step", "result:complete:winners-bytes")
async def test_a_relay_killed_at_any_call_leaves_one_verdict(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path, transport: Transport
) -> None:
    first = Yard(valkey, mock, tmp_path / "first", model="first", transport=transport)
    points = await points_of_a_job(first)
    kinds = {point.split("#")[0] for point in points}
    assert {LOOKS[transport], "redis EVALSHA", "http send", "http receive", "store open", "store read"} <= kinds, kinds
    assert len(points) > 30
    await kill_at_each(
        points, lambda number: Yard(valkey, mock, tmp_path / f"p{number}", model=f"p{number}", transport=transport)
    )


@pytest.mark.s3
@pytest.mark.timeout(600)
@requirement("run:kill:one-verdict-at-every-step", "result:complete:winners-bytes")
async def test_the_same_with_encrypted_objects_on_s3(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path, s3_store: tuple[BlobStore, dict[str, str]]
) -> None:
    first = Yard(valkey, mock, tmp_path / "first", model="first", store=s3_store)
    points = await points_of_a_job(first)
    assert {"store GetObject", "store PutObject"} <= {point.split("#")[0] for point in points}, points
    # The points of Redis and of the model are those of the test above; here, all of the store and the verdict.
    chosen = [point for point in points if point.startswith(("store", "redis EVALSHA"))]
    await kill_at_each(
        chosen, lambda number: Yard(valkey, mock, tmp_path / f"p{number}", model=f"p{number}", store=s3_store)
    )


async def points_of_a_job(yard: Yard) -> list[str]:
    await yard.flush()
    _ = await yard.finished_by_a_relay(CONTENT)  # from now on the server knows the scripts
    job_id = await yard.submit(CONTENT)
    points = list(dict.fromkeys(await passed_points(yard, "relay")))
    _ = await yard.check_one_good_end(job_id, CONTENT)
    await yard.aclose()
    return points


async def kill_at_each(points: list[str], make: Callable[[int], Yard]) -> None:
    """A yard, a job and a relay for each point; it dies there, and another finishes the job."""
    limit = asyncio.Semaphore(3)
    unreached: list[str] = []

    async def kill_at(number: int, point: str) -> None:
        async with limit:
            yard = make(number)
            job_id = await yard.submit(CONTENT)
            process = await yard.relay(faultpoint=True, FAULT_LOG=str(yard.directory / "points"), FAULT_AT=point)
            code = await process.ended()
            if code == 0:
                unreached.append(point)
            else:
                assert code == -signal.SIGKILL, (point, process.log.read_text("utf-8"))

            async def run_again() -> bool:
                await yard.reap_the_dead()
                return (await yard.status(job_id)).status != "processing"

            _ = await eventually(run_again)
            if not (await yard.status(job_id)).terminal:
                assert await (await yard.relay()).ended() == 0, point
            record = await yard.check_one_good_end(job_id, CONTENT)
            assert record.reaps <= 1, point
            await yard.aclose()

    async with anyio.create_task_group() as group:
        for number, point in enumerate(points):
            group.start_soon(kill_at, number, point)
    assert len(unreached) <= len(points) // 10, unreached


@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", LOOKS)
@requirement("server:kill:nothing-lost-with-always")
async def test_a_server_killed_at_any_call_loses_nothing_with_appendfsync_always(
    mock: Mock, tmp_path: Path, transport: Transport
) -> None:
    with ValkeyProcess(appendonly="always") as server:
        first = Yard(server, mock, tmp_path / "first", model="first", transport=transport)
        _ = await first.finished_by_a_relay(CONTENT)
        job_id = await first.submit(CONTENT)
        points = [point for point in dict.fromkeys(await passed_points(first, "relay")) if "http receive" not in point]
        _ = await first.check_one_good_end(job_id, CONTENT)
        await first.aclose()
        for number, point in enumerate(points):
            yard = Yard(server, mock, tmp_path / f"p{number}", model=f"p{number}", transport=transport)
            job_id = await yard.submit(CONTENT)
            log = yard.directory / "points"
            process = await yard.relay(
                faultpoint=True,
                FAULT_LOG=str(log),
                FAULT_AT=point,
                FAULT_ACTION="wait",
                RELAY_QUEUE_POP_TIMEOUT_SECONDS="5",
            )
            _ = await eventually(
                lambda log=log, point=point: log.exists() and f"{point}\n" in log.read_text("ascii"), within=15
            )
            server.kill()
            _ = server.start()
            await process.go_on()
            code = await process.ended()
            assert code in {0, 1}, (point, process.log.read_text("utf-8"))
            if not (await yard.status(job_id)).terminal:
                await yard.reap_the_dead()
                assert await (await yard.relay()).ended() == 0, point
            _ = await yard.check_one_good_end(job_id, CONTENT)
            await yard.aclose()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", LOOKS)
@requirement("reap:kill:reaper-killed-anywhere")
async def test_a_reaper_killed_at_any_call_loses_and_doubles_nothing(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path, transport: Transport
) -> None:
    quick = {"REAPER_DEATH_GRACE_SECONDS": "0.2", "REAPER_INTERVAL_SECONDS": "1"}

    async def orphan(yard: Yard) -> str:
        job_id = await yard.submit(CONTENT, mock_delay_seconds=30)
        relay = await yard.relay()

        async def running() -> bool:
            return (await yard.status(job_id)).status == "processing"

        _ = await eventually(running, within=15)
        relay.signal(signal.SIGKILL)
        _ = await relay.ended()
        return job_id

    async def requeued(yard: Yard, job_id: str) -> bool:
        return (await yard.status(job_id)).reaps == 1

    first = Yard(valkey, mock, tmp_path / "first", model="first", transport=transport)
    await first.flush()
    job_id = await orphan(first)
    log = first.directory / "points"
    reaper = await first.reaper(faultpoint=True, FAULT_LOG=str(log), FAULT_AT="", **quick)
    _ = await eventually(lambda: requeued(first, job_id), within=15)
    reaper.signal(signal.SIGTERM)
    assert await reaper.ended() == 0
    points = list(dict.fromkeys(log.read_text("ascii").splitlines()))
    await first.aclose()
    # Around the reap itself every point; the start-up and idle passes repeat the same calls.
    chosen = [point for point in points if point.startswith("redis EVAL")][:16] + points[:8]
    limit = asyncio.Semaphore(3)

    async def kill_at(number: int, point: str) -> None:
        async with limit:
            yard = Yard(valkey, mock, tmp_path / f"p{number}", model=f"p{number}", transport=transport)
            job_id = await orphan(yard)
            reaper = await yard.reaper(
                faultpoint=True, FAULT_LOG=str(yard.directory / "points"), FAULT_AT=point, **quick
            )

            async def killed_or_done() -> bool:
                return not reaper.running or await requeued(yard, job_id)

            _ = await eventually(killed_or_done, within=15)
            _ = await yard.reaper(faultpoint=False, **quick)
            _ = await eventually(lambda: requeued(yard, job_id), within=15)
            places = await yard.operator.places()
            assert (places.pending, places.processing) == ([job_id], []), point
            await yard.aclose()

    async with anyio.create_task_group() as group:
        for number, point in enumerate(chosen):
            group.start_soon(kill_at, number, point)
