"""A pipeline with real relays and a reaper: stages are killed at random, and every document comes out once."""

from __future__ import annotations

import hashlib
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec
import pytest

from queuecore.broker import NewJob
from queuecore.job import JobRecord, run_fields
from queuecore.testing.clock import eventually
from queuecore.testing.fleet import Fleet
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
STAGES: Final = ("store", "chunk", "embed", "graph")
DOCUMENTS: Final = 24
KILLS: Final = 12


@pytest.mark.timeout(300)
@requirement("pipeline:kill:real-relays")
async def test_documents_go_through_four_stages_of_killed_relays(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path
) -> None:
    yard = Yard(valkey, mock, tmp_path, model="store", transport="stage", stages=STAGES[1:], lease_seconds=10)
    await yard.flush()
    contents: dict[str, bytes] = {}
    for number in range(DOCUMENTS):
        content = f"document {number}".encode()
        job = await yard.prepare(content, mock_delay_seconds=0.3)
        contents[job.id] = content
        fields = {**job.fields, **run_fields("line", yard.whole.steps("line"))}
        _ = await yard.broker.submit(NewJob(id=job.id, fields=fields, priority="normal"))
    _ = await yard.reaper(REAPER_INTERVAL_SECONDS="1", REAPER_DEATH_GRACE_SECONDS="0.5", REAPER_MAX_REAP_ATTEMPTS="9")
    killed = 0
    async with AsyncExitStack() as stack:
        fleets = [
            await stack.enter_async_context(Fleet(yard, 1, RELAY_MODEL=stage, RELAY_MAX_JOBS="4")) for stage in STAGES
        ]

        async def over() -> bool:
            nonlocal killed
            if killed < KILLS:
                fleets[killed % len(fleets)].kill_one()
                killed += 1
            return all([(await yard.status(job_id)).terminal for job_id in contents])

        _ = await eventually(over, within=240, every=0.5)
    assert sum(fleet.codes[-signal.SIGKILL] for fleet in fleets) >= KILLS // 2
    records = [await yard.status(job_id) for job_id in contents]
    assert {record.status for record in records} == {"completed"}
    for record in records:
        await check_chain(yard, record, contents[record.id])
    for stage in STAGES:
        assert int(await yard.link.call("GET", f"stats:{stage}:completed")) == DOCUMENTS
        assert await yard.link.call("EXISTS", f"queue:{stage}", f"processing:{stage}", f"deadletter:{stage}") == 0
    assert await yard.link.call("XLEN", "relay:graph:outbox") == DOCUMENTS, "one event a run"
    await yard.aclose()


async def check_chain(yard: Yard, record: JobRecord, content: bytes) -> None:
    """Each stage read exactly what the one before it had stored."""
    for key in [*(past.result_key for past in record.history), record.result_key]:
        async with yard.store.get(key) as chunks:
            stored = b"".join([chunk async for chunk in chunks])
        assert msgspec.json.decode(stored)["sha256"] == hashlib.sha256(content).hexdigest(), (record.id, key)
        content = stored
