from __future__ import annotations

import pytest

from queuecore.broker import Claim, Failure, NewJob, Result, Worker
from queuecore.errors import ClaimLost
from queuecore.job import Status
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio
RESULT = Result("j1/1-c1/result", 12, "application/json", "a" * 64, 200)


async def claimed(stand: Stand, claim_id: str = "c1") -> Claim:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    claim = await stand.broker.claim(Worker("w"), claim_id)
    assert claim is not None
    return claim


@requirement("verdict:any:leaves-every-structure", "notice:any:one-event-per-verdict")
async def test_a_completed_job_has_its_result_one_event_and_leaves_nothing(stand: Stand) -> None:
    claim = await claimed(stand)
    stand.clock.advance(40)
    assert await stand.broker.complete(claim, RESULT) is Status.COMPLETED

    record = await stand.broker.get("j1")
    assert (record.status, record.result_key, record.result_size) == ("completed", RESULT.key, 12)
    assert (record.result_sha256, record.result_content_type) == (RESULT.sha256, RESULT.content_type)
    assert (record.finished_at, record.processing_ms) == (stand.clock.now_ms, 40)
    assert record.expires_at == stand.clock.now_ms + 86_400_000
    assert await stand.operator.residue() == []
    assert [event.event_id for event in await stand.broker.events("g")] == ["j1:1"]


@requirement("unknown:complete:repeat-changes-nothing")
async def test_a_repeated_complete_answers_the_same_and_adds_no_event(stand: Stand) -> None:
    claim = await claimed(stand)
    assert await stand.broker.complete(claim, RESULT) == await stand.broker.complete(claim, RESULT)

    assert (await stand.broker.counts()).outbox == 1


@requirement("fence:complete:stale-refused")
async def test_a_stale_claim_cannot_complete_a_job_that_another_runs(stand: Stand) -> None:
    stale = await claimed(stand)
    stand.clock.advance(60_001)
    assert [one.outcome for one in await stand.broker.reap()] == ["requeued"]
    current = await stand.broker.claim(Worker("other"), "c2")
    assert current is not None

    with pytest.raises(ClaimLost):
        _ = await stand.broker.complete(stale, RESULT)

    record = await stand.broker.get("j1")
    assert (record.status, record.claim_id, record.result_key) == ("processing", "c2", "")
    winner = RESULT._replace(key="j1/2-c2/result")
    assert await stand.broker.complete(current, winner) is Status.COMPLETED
    with pytest.raises(ClaimLost):
        _ = await stand.broker.complete(stale, RESULT)
    assert (await stand.broker.get("j1")).result_key == winner.key


@requirement("fence:complete:requeued-accepted")
async def test_a_late_owner_may_complete_a_job_that_nobody_claimed_again(stand: Stand) -> None:
    late = await claimed(stand)
    stand.clock.advance(60_001)
    _ = await stand.broker.reap()
    assert (await stand.operator.places()).pending == ["j1"]

    assert await stand.broker.complete(late, RESULT) is Status.COMPLETED
    assert await stand.operator.residue() == []
    assert await stand.broker.claim(Worker("other"), "c2") is None


async def test_valid_work_is_accepted_while_delayed_or_paused_too(stand: Stand) -> None:
    claim = await claimed(stand)
    assert await stand.broker.fail(claim, Failure("inference_error", "busy", 503, retry_in_ms=9_000)) is Status.PENDING
    assert (await stand.operator.places()).delayed == ["j1"]
    assert await stand.broker.complete(claim, RESULT) is Status.COMPLETED
    assert await stand.operator.residue() == []


@requirement("cancel:any:flagged-ends-cancelled")
async def test_completing_a_job_whose_cancel_was_requested_cancels_it(stand: Stand) -> None:
    claim = await claimed(stand)
    _ = await stand.broker.cancel("j1")
    assert await stand.broker.complete(claim, RESULT) is Status.CANCELLED
    assert await stand.broker.complete(claim, RESULT) is Status.CANCELLED

    record = await stand.broker.get("j1")
    assert (record.status, record.error_code, record.result_key) == ("cancelled", "cancelled", "")


@requirement("verdict:any:one-per-generation")
async def test_no_verdict_changes_another(stand: Stand) -> None:
    claim = await claimed(stand)
    assert await stand.broker.fail(claim, Failure("inference_error", "no", 500)) is Status.FAILED

    with pytest.raises(ClaimLost):
        _ = await stand.broker.complete(claim, RESULT)
    assert (await stand.broker.get("j1")).status == "failed"
    assert (await stand.broker.counts()).outbox == 1


async def test_a_foreign_relays_verdict_counts_only_while_no_claim_of_ours_is_current(stand: Stand) -> None:
    claim = await claimed(stand)
    with pytest.raises(ClaimLost):
        _ = await stand.broker.complete_foreign("j1", Status.COMPLETED, result_key="j1/result.json")
    _ = await stand.broker.release(claim)

    done = await stand.broker.complete_foreign("j1", Status.COMPLETED, result_key="j1/result.json")
    assert done is Status.COMPLETED
    assert (await stand.broker.get("j1")).result_key == "j1/result.json"
    assert await stand.operator.residue() == []


@requirement("ordered:any:next-let-in")
async def test_completing_lets_the_next_job_of_its_ordering_key_in(stand: Stand) -> None:
    for name in ("a", "b", "c"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}, ordering_key="k"))
    for name in ("a", "b", "c"):
        assert (await stand.operator.places()).pending == [name]
        claim = await stand.broker.claim(Worker("w"), f"c-{name}")
        assert claim is not None
        assert await stand.broker.claim(Worker("w"), "nobody") is None
        _ = await stand.broker.complete(claim, RESULT)
    assert await stand.operator.residue() == []
