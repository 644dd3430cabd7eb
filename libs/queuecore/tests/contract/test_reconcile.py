from __future__ import annotations

import pytest

from queuecore.broker import NewJob, Result, Worker
from queuecore.job import Status
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


async def outcomes(stand: Stand) -> list[tuple[str, str]]:
    return sorted((one.job_id, one.outcome) for one in await stand.broker.reconcile())


@requirement("reconcile:reconcile:job-in-no-structure-returns")
async def test_a_live_job_in_no_structure_comes_back_on_second_sight(stand: Stand) -> None:
    for name in ("a", "b"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    await stand.operator.remove_waiting("a")
    assert await outcomes(stand) == [("a", "waiting")]
    stand.clock.advance(29_999)
    assert await outcomes(stand) == [("a", "waiting")]
    stand.clock.advance(1)
    assert await outcomes(stand) == [("a", "requeued")]
    lost_its_place = stand.limits.order == "lanes"  # an entry of a stream is its place
    assert (await stand.operator.places()).pending == (["b", "a"] if lost_its_place else ["a", "b"])
    assert (await stand.broker.get("a")).reaps == 0


async def test_a_running_job_that_an_operator_removed_is_left_to_its_owner(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    claim = await stand.broker.claim(Worker("w"), "c1")
    assert claim is not None
    await stand.operator.remove("a")
    assert await outcomes(stand) == [("a", "live")]
    stand.clock.advance(50_000)
    assert await outcomes(stand) == [("a", "live")]
    assert await stand.broker.complete(claim, Result("k", 1, "t/t", "0")) is Status.COMPLETED
    assert await stand.operator.residue() == []


async def test_a_removed_job_whose_owner_died_is_counted_as_a_death(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    assert await stand.broker.claim(Worker("w"), "c1") is not None
    await stand.operator.remove("a")
    stand.clock.advance(60_001)
    assert await outcomes(stand) == [("a", "waiting")]
    stand.clock.advance(30_000)
    assert await outcomes(stand) == [("a", "requeued")]
    assert (await stand.broker.get("a")).reaps == 1


async def test_jobs_that_stand_where_they_should_are_left_alone(stand: Stand) -> None:
    now = stand.clock.now_ms
    _ = await stand.broker.submit(NewJob(id="head", fields={}, ordering_key="k"))
    _ = await stand.broker.submit(NewJob(id="behind", fields={}, ordering_key="k"))
    _ = await stand.broker.submit(NewJob(id="delayed", fields={}, not_before=now + 90_000))
    for _ in range(3):
        assert await outcomes(stand) == []
        stand.clock.advance(30_000)


async def test_a_job_behind_a_key_whose_holder_vanished_gets_in(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="head", fields={}, ordering_key="k"))
    _ = await stand.broker.submit(NewJob(id="behind", fields={}, ordering_key="k"))
    await stand.operator.delete_record("head")
    _ = await outcomes(stand)
    stand.clock.advance(30_000)
    _ = await outcomes(stand)
    _ = await stand.broker.sweep()
    claim = await stand.broker.claim(Worker("w"), "c1")
    assert claim is not None
    assert claim.job_id == "behind"
    _ = await stand.broker.complete(claim, Result("k", 1, "t/t", "0"))
    assert await stand.operator.residue() == []
