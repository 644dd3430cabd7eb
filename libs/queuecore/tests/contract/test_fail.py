from __future__ import annotations

import pytest

from queuecore.broker import Breaker, Claim, Failure, NewJob, Worker
from queuecore.errors import ClaimLost
from queuecore.job import Status
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio
FINAL = Failure("inference_error", "the model said no", 500)
RETRY = FINAL._replace(retry_in_ms=2_000)


async def claimed(stand: Stand, name: str = "j1", **options: object) -> Claim:
    _ = await stand.broker.submit(NewJob(id=name, fields={}, **options))  # pyright: ignore[reportArgumentType]
    claim = await stand.broker.claim(Worker("w"), f"c-{name}")
    assert claim is not None
    return claim


@requirement("poison:any:counters-apart")
async def test_a_final_failure_is_a_verdict_with_its_cause(stand: Stand) -> None:
    claim = await claimed(stand)
    assert await stand.broker.fail(claim, FINAL) is Status.FAILED
    assert await stand.broker.fail(claim, FINAL) is Status.FAILED

    record = await stand.broker.get("j1")
    assert (record.error_code, record.error_message, record.http_status) == ("inference_error", FINAL.message, 500)
    assert (record.failures, record.reaps) == (1, 0)
    assert await stand.operator.residue() == []
    assert (await stand.broker.counts()).outbox == 1


async def test_a_retry_waits_its_time_goes_to_the_tail_and_is_counted_once(stand: Stand) -> None:
    claim = await claimed(stand)
    _ = await stand.broker.submit(NewJob(id="other", fields={}))
    assert await stand.broker.fail(claim, RETRY) is Status.PENDING
    assert await stand.broker.fail(claim, RETRY) is Status.PENDING, "a repeat after a lost reply"
    assert (await stand.broker.get("j1")).failures == 1
    assert (await stand.operator.places()).delayed == ["j1"]

    stand.clock.advance(1_999)
    assert await stand.broker.promote() == 0
    stand.clock.advance(1)
    assert await stand.broker.promote() == 1
    assert (await stand.operator.places()).pending == ["other", "j1"]


@requirement("fence:fail:stale-refused", "unknown:fail:repeat-changes-nothing")
async def test_a_repeated_retry_of_a_job_that_was_claimed_again_changes_nothing(stand: Stand) -> None:
    claim = await claimed(stand)
    _ = await stand.broker.fail(claim, RETRY)
    stand.clock.advance(2_000)
    _ = await stand.broker.promote()
    current = await stand.broker.claim(Worker("w"), "c2")
    assert current is not None

    assert await stand.broker.fail(claim, RETRY) is Status.PENDING, "the same word as before"
    assert (await stand.broker.get("j1")).claim_id == "c2"
    assert (await stand.operator.places()).delayed == []
    with pytest.raises(ClaimLost):
        _ = await stand.broker.fail(claim._replace(claim_id="c9"), RETRY)


async def test_a_retry_never_outlives_the_deadline(stand: Stand) -> None:
    claim = await claimed(stand, deadline=stand.clock.now_ms + 2_000)
    assert await stand.broker.fail(claim, RETRY) is Status.FAILED


async def test_failing_a_flagged_job_cancels_it(stand: Stand) -> None:
    claim = await claimed(stand)
    _ = await stand.broker.cancel("j1")
    assert await stand.broker.fail(claim, RETRY) is Status.CANCELLED
    assert await stand.operator.residue() == []


async def test_the_breaker_pauses_the_queue_and_its_cool_down_ends_it(stand: Stand) -> None:
    broken = FINAL._replace(infrastructure=True, breaker=Breaker(2, 10_000))
    first = await claimed(stand, "a")
    _ = await stand.broker.fail(first, broken)
    healthy = await claimed(stand, "b")
    _ = await stand.broker.fail(healthy, FINAL)  # the model answered: the row is broken
    _ = await stand.broker.fail(await claimed(stand, "c"), broken)
    assert (await stand.broker.counts()).paused_reason == ""
    last = await claimed(stand, "d")
    _ = await stand.broker.submit(NewJob(id="e", fields={}))
    _ = await stand.broker.fail(last, broken)

    counts = await stand.broker.counts()
    assert (counts.paused_reason, counts.paused, counts.pending) == ("breaker", 1, 0)
    assert await stand.broker.claim(Worker("w"), "c9") is None
    stand.clock.advance(10_000)
    _ = await stand.broker.promote()
    assert (await stand.operator.places()).pending == ["e"]


@requirement("fence:fail:requeued-refused")
async def test_the_owner_of_a_reaped_job_cannot_fail_it(stand: Stand) -> None:
    claim = await claimed(stand)
    stand.clock.advance(60_001)
    _ = await stand.broker.reap()
    for failure in (RETRY, FINAL):
        with pytest.raises(ClaimLost):
            _ = await stand.broker.fail(claim, failure)
    assert (await stand.operator.places()) == (["j1"], [], [], [], [])
