from __future__ import annotations

import pytest

from queuecore.broker import NewJob, Result, Worker
from queuecore.errors import JobExpired, JobNotFound, WrongState
from queuecore.job import Status
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("place", ["pending", "delayed", "paused", "ordered"])
@requirement("cancel:cancel:waiting-ends-at-once", "unknown:cancel:repeat-changes-nothing")
async def test_cancelling_a_waiting_job_is_final_at_once(stand: Stand, place: str) -> None:
    broker = stand.broker
    if place == "ordered":
        _ = await broker.submit(NewJob(id="head", fields={}, ordering_key="k"))
    _ = await broker.submit(
        NewJob(
            id="j1",
            fields={},
            not_before=stand.clock.now_ms + 5_000 if place == "delayed" else None,
            ordering_key="k" if place == "ordered" else "",
        )
    )
    if place == "paused":
        await broker.pause()
    assert await broker.cancel("j1") == (Status.CANCELLED, False)
    assert await broker.cancel("j1") == (Status.CANCELLED, True)
    record = await broker.get("j1")
    assert (record.status, record.error_code) == ("cancelled", "cancelled")
    assert (await broker.counts()).outbox == 1
    if place == "ordered":
        _ = await broker.cancel("head")
    assert await stand.operator.residue() == []


@requirement("cancel:cancel:running-is-flagged", "cancel:any:flagged-ends-cancelled")
async def test_cancelling_a_running_job_sets_a_flag_that_its_reaper_honours(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    _ = await stand.broker.claim(Worker("w"), "c1")
    assert await stand.broker.cancel("j1") == (Status.PROCESSING, False)
    assert (await stand.broker.get("j1")).cancel_requested == 1

    stand.clock.advance(60_001)
    assert [one.outcome for one in await stand.broker.reap()] == ["cancelled"]
    assert (await stand.broker.get("j1")).status == "cancelled"
    assert await stand.operator.residue() == []


async def test_another_verdict_cannot_be_cancelled(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    claim = await stand.broker.claim(Worker("w"), "c1")
    assert claim is not None
    _ = await stand.broker.complete(claim, Result("k", 1, "t/t", "0"))
    with pytest.raises(WrongState, match="completed"):
        _ = await stand.broker.cancel("j1")


async def test_unknown_and_forgotten_jobs_are_told_apart(stand: Stand) -> None:
    with pytest.raises(JobNotFound):
        _ = await stand.broker.cancel("nobody")
    _ = await stand.broker.submit(NewJob(id="j1", fields={"tenant": "t", "service_type": "s"}))
    _ = await stand.broker.cancel("j1")
    await forget(stand, "j1")
    with pytest.raises(JobExpired) as caught:
        _ = await stand.broker.cancel("j1")
    assert caught.value.tombstone["status"] == "cancelled"
    assert caught.value.tombstone["tenant"] == "t"


async def forget(stand: Stand, job_id: str) -> None:
    await stand.operator.delete_record(job_id)
