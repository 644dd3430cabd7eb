from __future__ import annotations

import pytest

from queuecore.broker import Claim, NewJob, Worker
from queuecore.errors import ClaimLost
from queuecore.job import Status
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


async def take(stand: Stand, claim_id: str) -> Claim:
    claim = await stand.broker.claim(Worker("w"), claim_id)
    assert claim is not None
    return claim


@requirement("place:release:back-at-the-head")
async def test_released_jobs_stand_at_the_head_in_their_old_order(stand: Stand) -> None:
    for name in ("a", "b", "c", "d"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    a, b, c = [await take(stand, f"c{number}") for number in range(3)]
    for claim in (b, c, a):
        assert await stand.broker.release(claim) is Status.PENDING

    assert (await stand.operator.places()).pending == ["a", "b", "c", "d"]


@requirement("unknown:release:repeat-changes-nothing", "poison:any:counters-apart")
async def test_a_release_counts_nothing_and_a_repeat_does_nothing(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    claim = await take(stand, "c1")
    _ = await stand.broker.release(claim)
    assert await stand.broker.release(claim) is Status.PENDING
    record = await stand.broker.get("a")
    assert (record.reaps, record.failures, record.started_at) == (0, 0, None)
    assert (await stand.operator.places()) == (["a"], [], [], [], [])

    _ = await take(stand, "c2")
    assert await stand.broker.release(claim) is Status.PENDING, "the same word; the new claim is untouched"
    assert (await stand.broker.get("a")).status == "processing"
    assert (await stand.operator.places()) == ([], ["a"], [], [], [])


@requirement("fence:release:stale-refused", "fence:release:requeued-refused")
async def test_the_owner_of_a_reaped_job_cannot_release_it(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    claim = await take(stand, "c1")
    stand.clock.advance(60_001)
    _ = await stand.broker.reap()
    with pytest.raises(ClaimLost):
        _ = await stand.broker.release(claim)
    _ = await take(stand, "c2")
    with pytest.raises(ClaimLost):
        _ = await stand.broker.release(claim)
    assert (await stand.operator.places()).processing == ["a"]


async def test_releasing_a_flagged_job_cancels_it(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    claim = await take(stand, "c1")
    _ = await stand.broker.cancel("a")
    assert await stand.broker.release(claim) is Status.CANCELLED
    assert await stand.operator.residue() == []


async def test_a_job_released_while_the_queue_is_paused_waits_with_the_others(stand: Stand) -> None:
    for name in ("a", "b"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    claim = await take(stand, "c1")
    await stand.broker.pause()
    _ = await stand.broker.release(claim)
    assert (await stand.operator.places()) == ([], [], ["a", "b"], [], [])
