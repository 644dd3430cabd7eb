from __future__ import annotations

import anyio
import pytest

from queuecore.broker import NewJob, Result, Worker
from queuecore.errors import ClaimLost
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio
WORKER = Worker("w", "run:7")
RESULT = Result("k", 1, "text/plain", "0" * 64)


async def test_an_empty_queue_gives_nothing(stand: Stand) -> None:
    assert await stand.broker.claim(WORKER, "c1") is None
    assert await stand.broker.claim(WORKER, "c1", wait_seconds=0.05) is None


async def test_a_claim_carries_fence_owner_and_times(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={"tenant": "t"}))
    stand.clock.advance(250)
    claim = await stand.broker.claim(WORKER, "c1", execution_ms=5_000)

    assert claim is not None
    record, now = claim.record, stand.clock.now_ms
    assert (claim.job_id, claim.fence, claim.claim_id) == ("j1", 1, "c1")
    assert (record.status, record.owner, record.owner_client, record.claims) == ("processing", "w", "run:7", 1)
    assert (record.started_at, record.lease_until, record.execute_until) == (now, now + 60_000, now + 5_000)
    assert record.queue_wait_ms == 250
    assert (await stand.operator.places()).processing == ["j1"]


@requirement("unknown:claim:repeat-gives-the-same-claim")
async def test_a_repeat_with_the_same_claim_id_gives_the_same_claim(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    _ = await stand.broker.submit(NewJob(id="j2", fields={}))
    first = await stand.broker.claim(WORKER, "c1")
    assert first is not None
    await stand.operator.move_back()  # the popped entry comes again, as after a lost reply
    again = await stand.broker.claim(WORKER, "c1")

    assert again is not None
    assert (again.job_id, again.fence) == ("j1", 1)
    assert again.record.claims == 1


@requirement("claim:claim:one-current-claim")
async def test_an_operator_who_moves_a_running_job_takes_it_from_nobody(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    first = await stand.broker.claim(WORKER, "c1")
    assert first is not None
    await stand.operator.move_back()

    assert await stand.broker.claim(Worker("other"), "c2") is None
    assert (await stand.operator.places()) == ([], ["j1"], [], [], []), "the claim's look healed the move"
    assert await stand.broker.complete(first, RESULT) == "completed"


async def test_a_lapsed_claim_is_taken_over_and_counted_as_a_death(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    stale = await stand.broker.claim(WORKER, "c1")
    assert stale is not None
    stand.clock.advance(60_001)
    await stand.operator.move_back()
    current = await stand.broker.claim(Worker("other"), "c2")

    assert current is not None
    assert (current.fence, current.record.reaps, current.record.claims) == (2, 1, 2)
    with pytest.raises(ClaimLost):
        _ = await stand.broker.renew(stale)


async def test_a_take_over_past_the_cap_dead_letters(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    for number in range(4):
        assert await stand.broker.claim(WORKER, f"c{number}") is not None
        stand.clock.advance(60_001)
        await stand.operator.move_back()

    assert await stand.broker.claim(WORKER, "c9") is None
    record = await stand.broker.get("j1")
    assert (record.status, record.error_code, record.reaps) == ("failed", "worker_lost", 4)
    assert (await stand.operator.places()).deadletter == ["j1"]


async def test_a_foreign_lease_on_a_pending_record_is_respected(stand: Stand) -> None:
    stand.needs("detached-lease")
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    _ = await stand.operator.pop()
    await stand.operator.set_lease("j1")
    await stand.operator.offer_again()

    assert await stand.broker.claim(WORKER, "c1") is None
    assert (await stand.operator.places()).processing == ["j1"]


async def test_entries_without_a_live_record_are_removed_on_the_way(stand: Stand) -> None:
    for name in ("gone", "done", "good"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    await stand.operator.delete_record("gone")
    _ = await stand.broker.cancel("done")
    claim = await stand.broker.claim(WORKER, "c1")

    assert claim is not None
    assert claim.job_id == "good"
    assert (await stand.operator.places()).processing == ["good"]


@requirement("job:expire:deadline-kept")
async def test_a_job_past_its_deadline_expires_instead_of_running(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="late", fields={}, deadline=stand.clock.now_ms + 10))
    _ = await stand.broker.submit(NewJob(id="next", fields={}, deadline=stand.clock.now_ms + 5_000))
    stand.clock.advance(10)
    claim = await stand.broker.claim(WORKER, "c1", execution_ms=60_000)

    assert claim is not None
    assert claim.job_id == "next"
    assert claim.record.execute_until == claim.record.deadline, "the deadline bounds the run too"
    late = await stand.broker.get("late")
    assert (late.status, late.error_code) == ("expired", "deadline_exceeded")


async def test_a_waiting_claim_gets_a_job_that_arrives_later(stand: Stand) -> None:
    found: list[str] = []

    async def take() -> None:
        claim = await stand.broker.claim(WORKER, "c1", wait_seconds=5)
        assert claim is not None
        found.append(claim.job_id)

    async with anyio.create_task_group() as group:
        group.start_soon(take)
        _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    assert found == ["j1"]


async def test_interrupt_ends_a_wait_and_every_later_one(stand: Stand) -> None:
    with anyio.fail_after(2):
        async with anyio.create_task_group() as group:
            group.start_soon(stand.broker.claim, WORKER, "c1")
            await stand.broker.interrupt()
        assert await stand.broker.claim(WORKER, "c2", wait_seconds=None) is None
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    assert await stand.broker.claim(WORKER, "c3") is None
    assert (await stand.operator.places()).pending == ["j1"]
