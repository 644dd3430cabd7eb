"""A gateway killed before and after every call between an upload's first byte and its answer: a whole job or none."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import Callable
from typing import Final

import anyio
import httpx
import pytest

from queuecore.job import JobRecord, Status, input_key
from queuecore.testing.clock import eventually
from queuecore.testing.requirement import requirement
from queuecore.testing.yard import Served, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]

SIZE: Final = 3 << 19  # above what is admitted unseen, and more than one piece of the store's


def upload(name: str) -> bytes:
    return name.encode().ljust(SIZE, b".")


async def submit(gateway: Served, content: bytes) -> str | None:
    """The id that a 202 told; None when no answer came."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        try:
            answer = await http.post("/jobs/echo", content=content)
        except httpx.TransportError:
            return None
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job_id"])


@pytest.mark.timeout(300)
@requirement("submit:kill:nothing-half-made")
async def test_a_gateway_killed_at_any_call_of_a_submission_leaves_a_whole_job_or_none(
    yard: Yard, tell: Callable[[str], None]
) -> None:
    log = yard.directory / "points"
    first = await yard.gateway()
    assert await submit(first, upload("first")) is not None  # the server knows the script from here on
    first.signal(signal.SIGTERM)
    assert await first.ended() == 0
    undisturbed = await yard.gateway(faultpoint=True, FAULT_LOG=str(log))
    assert await submit(undisturbed, upload("undisturbed")) is not None
    passed = list(dict.fromkeys(log.read_text("ascii").splitlines()))
    # How often the body is received in pieces is the network's business.
    points = [
        point for point in passed if not point.startswith("http receive") or (point[13] in "12" and point[14] == ":")
    ]
    assert {point.split("#")[0] for point in points} >= {
        "http receive", "redis LLEN", "store create", "store write", "store _commit", "redis EVALSHA", "http answer"
    }, points  # fmt: skip

    limit = asyncio.Semaphore(3)
    told: dict[str, str | None] = {}

    async def kill_at(number: int, point: str) -> None:
        async with limit:
            gateway = await yard.gateway(
                faultpoint=True, FAULT_LOG=str(yard.directory / f"points-{number}"), FAULT_AT=point
            )
            told[point] = await submit(gateway, upload(point))
            assert await gateway.ended() == -signal.SIGKILL, (point, gateway.log.read_text("utf-8"))

    async with anyio.create_task_group() as group:
        for number, point in enumerate(points):
            group.start_soon(kill_at, number, point)

    jobs = await whole_jobs(yard)
    submitted = points.index("redis EVALSHA#1:after")
    for number, point in enumerate(points):
        digest = hashlib.sha256(upload(point)).hexdigest()
        found = [record.id for record in jobs.values() if record.input_sha256 == digest]
        assert len(found) == (1 if number >= submitted else 0), (point, found)
        assert told[point] in {None, *found}, point
    assert told[points[-1]] is not None, "a 202 that was seen"
    assert len(jobs) == 2 + len(points) - submitted

    orphans = stored(yard) - {input_key(job_id) for job_id in jobs}
    assert len(orphans) >= 4
    await swept(yard, jobs)
    assert await (await yard.relay(RELAY_MAX_JOBS="0")).ended(60) == 0
    for record in (await yard.queue.server.records(list(jobs))).values():
        assert record is not None
        assert record.status == Status.COMPLETED
    tell(f"gateway killed at {len(points)} points, {len(orphans)} objects without a record swept")


async def whole_jobs(yard: Yard) -> dict[str, JobRecord]:
    """Every job there is; record, entry, index and input of each are there, and nothing else is."""
    pending = await yard.link.call("LRANGE", "relay:m:pending", 0, -1)
    index = await yard.link.call("ZRANGE", "relay:m:jobs", 0, -1)
    keys: list[str] = await yard.link.call("KEYS", "job:*")
    assert len(set(pending)) == len(pending)
    assert set(pending) == set(index) == {key.removeprefix("job:") for key in keys}
    jobs: dict[str, JobRecord] = {}
    for job_id in pending:
        jobs[job_id] = record = await yard.status(job_id)
        content = (yard.directory / "blobs" / record.input_key).read_bytes()
        assert record.status == Status.PENDING
        assert (record.input_size, record.input_sha256) == (len(content), hashlib.sha256(content).hexdigest())
    return jobs


def stored(yard: Yard) -> set[str]:
    """Keys of all files, half-written ones included."""
    blobs = yard.directory / "blobs"
    return {path.relative_to(blobs).as_posix() for path in blobs.rglob("*") if path.is_file()}


async def swept(yard: Yard, jobs: dict[str, JobRecord]) -> None:
    """The reaper removes what has no record, and nothing more."""
    reaper = await yard.ready_reaper(REAPER_ORPHAN_MIN_AGE_SECONDS="1", REAPER_INTERVAL_SECONDS="0.1")
    kept = {record.input_key for record in jobs.values()}
    _ = await eventually(lambda: stored(yard) == kept, within=30)
    assert (await reaper.get("/health/ready"))[0] == 200
    reaper.signal(signal.SIGTERM)
    assert await reaper.ended() == 0
