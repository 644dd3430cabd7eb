from __future__ import annotations

import pytest

from queuecore.broker import Failure, NewJob, Result, Worker
from queuecore.errors import ClaimLost, JobNotFound, WrongState
from queuecore.job import Status
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio
RESULT = Result("k", 1, "t/t", "0")


async def bury(stand: Stand, name: str = "a") -> None:
    _ = await stand.broker.submit(NewJob(id=name, fields={"params": "{}"}))
    for number in range(4):
        assert await stand.broker.claim(Worker("w"), f"c{number}") is not None
        stand.clock.advance(60_001)
        _ = await stand.broker.reap()
    assert (await stand.operator.places()).deadletter == [name]


@requirement("deadletter:redrive:new-generation")
async def test_a_redriven_job_starts_again_in_a_new_generation(stand: Stand) -> None:
    await bury(stand)
    await stand.broker.redrive("a", generation=1)
    await stand.broker.redrive("a", generation=1)

    record = await stand.broker.get("a")
    assert (record.status, record.generation, record.reaps, record.claims, record.error_code) == (
        "pending",
        2,
        0,
        0,
        "",
    )
    assert record.expires_at is None
    assert (await stand.operator.places()) == (["a"], [], [], [], [])
    claim = await stand.broker.claim(Worker("w"), "again")
    assert claim is not None
    assert await stand.broker.complete(claim, RESULT) is Status.COMPLETED
    assert [event.event_id for event in await stand.broker.events("g")] == ["a:1", "a:2"]


async def test_a_claim_of_the_old_generation_is_void(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    old = None
    for number in range(4):
        old = await stand.broker.claim(Worker("w"), f"c{number}")
        assert old is not None
        stand.clock.advance(60_001)
        _ = await stand.broker.reap()
    await stand.broker.redrive("a")
    assert old is not None
    with pytest.raises(ClaimLost):
        _ = await stand.broker.complete(old, RESULT)
    assert (await stand.broker.get("a")).status == "pending"


async def test_only_dead_letters_are_redriven(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    with pytest.raises(WrongState, match="pending"):
        await stand.broker.redrive("a")
    claim = await stand.broker.claim(Worker("w"), "c1")
    assert claim is not None
    _ = await stand.broker.fail(claim, Failure("inference_error", "no", 400))
    with pytest.raises(WrongState, match="failed"):
        await stand.broker.redrive("a")
    with pytest.raises(JobNotFound):
        await stand.broker.redrive("nobody", generation=1)


async def test_a_dropped_dead_letter_keeps_its_record_but_not_its_place(stand: Stand) -> None:
    await bury(stand)
    assert await stand.broker.drop("a")
    assert not await stand.broker.drop("a")
    assert list(await stand.broker.deadletters()) == []
    assert (await stand.broker.get("a")).status == "failed"
    with pytest.raises(WrongState):
        await stand.broker.redrive("a")
