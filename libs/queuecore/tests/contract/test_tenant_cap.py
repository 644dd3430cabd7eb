"""A tenant's cap of pending jobs: it refuses that tenant alone, and follows every change of state."""

from __future__ import annotations

import pytest

from queuecore.broker import Claim, Failure, NewJob, Result, Worker
from queuecore.errors import QueueFull, TenantQueueFull
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = [pytest.mark.anyio, requirement("submit:submit:tenant-cap")]
WORKER = Worker("w")


async def submit(stand: Stand, job_id: str, *, tenant: str = "acme", cap: int | None = 2, **more: int | str) -> None:
    _ = await stand.broker.submit(NewJob(id=job_id, fields={"tenant": tenant}, tenant_cap=cap, **more))  # pyright: ignore[reportArgumentType]


async def is_full(stand: Stand) -> bool:
    try:
        await submit(stand, "probe")
    except TenantQueueFull:
        return True
    _ = await stand.broker.cancel("probe")
    await stand.broker.erase("probe")
    return False


async def claim(stand: Stand) -> Claim:
    claimed = await stand.broker.claim(WORKER, "c")
    assert claimed is not None
    return claimed


async def test_a_tenant_at_its_cap_is_refused_and_others_are_not(stand: Stand) -> None:
    await submit(stand, "a1")
    await submit(stand, "a2")

    with pytest.raises(TenantQueueFull, match="holds 2 waiting jobs of this tenant") as refused:
        await submit(stand, "a3")

    assert isinstance(refused.value, QueueFull)
    assert refused.value.code == "tenant_queue_full"
    await submit(stand, "b1", tenant="other")
    await submit(stand, "c1", tenant="free", cap=None)
    assert sorted((await stand.operator.places()).pending) == ["a1", "a2", "b1", "c1"]


async def test_a_repeat_of_an_accepted_submission_is_no_second_job(stand: Stand) -> None:
    await submit(stand, "a1")
    await submit(stand, "a1")
    await submit(stand, "a2")
    await submit(stand, "a2")  # at the cap: answered as before

    assert (await stand.operator.places()).pending == ["a1", "a2"]


async def test_delayed_ordered_and_paused_jobs_count(stand: Stand) -> None:
    await submit(stand, "a1", not_before=stand.clock.now_ms + 1000)
    await submit(stand, "k", tenant="other", ordering_key="k")
    await submit(stand, "a2", ordering_key="k")
    assert await is_full(stand)

    _ = await stand.broker.cancel("a2")
    await stand.broker.pause()
    assert not await is_full(stand)
    await submit(stand, "a3")
    assert await is_full(stand)


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
async def test_a_running_job_does_not_count_and_no_verdict_makes_the_number_drift(stand: Stand, end: str) -> None:
    await submit(stand, "a1")
    await submit(stand, "a2")
    claimed = await claim(stand)
    assert not await is_full(stand)
    await submit(stand, "a3")
    assert await is_full(stand)

    match end:
        case "complete":
            _ = await stand.broker.complete(claimed, Result("r", 1, "text/plain", "0" * 64))
        case "fail":
            _ = await stand.broker.fail(claimed, Failure("inference_error", "no"))
        case _:
            _ = await stand.broker.cancel(claimed.job_id)
            _ = await stand.broker.fail(claimed, Failure("inference_error", "no"))
    assert await is_full(stand)  # a2 and a3 wait
    _ = await claim(stand)
    assert not await is_full(stand)


@pytest.mark.parametrize("back", ["release", "retry", "reap"])
async def test_a_job_that_comes_back_counts_again(stand: Stand, back: str) -> None:
    await submit(stand, "a1")
    claimed = await claim(stand)
    await submit(stand, "a2")
    assert not await is_full(stand)

    match back:
        case "release":
            _ = await stand.broker.release(claimed)
        case "retry":
            _ = await stand.broker.fail(claimed, Failure("inference_error", "busy", retry_in_ms=1000))
        case _:
            stand.clock.advance(stand.limits.lease_ms + 1)
            _ = await stand.broker.reap()
    assert await is_full(stand)


async def test_a_redriven_dead_letter_counts_again(stand: Stand) -> None:
    await submit(stand, "a1")
    for _ in range(stand.limits.max_reap_attempts + 1):
        _ = await claim(stand)
        stand.clock.advance(stand.limits.lease_ms + 1)
        _ = await stand.broker.reap()
    await submit(stand, "a2")
    assert not await is_full(stand)

    await stand.broker.redrive("a1")

    assert await is_full(stand)


async def test_an_expired_job_counts_no_more(stand: Stand) -> None:
    await submit(stand, "a1", deadline=stand.clock.now_ms + 1000)
    await submit(stand, "a2")
    assert await is_full(stand)

    stand.clock.advance(1001)
    assert await stand.broker.expire() == ["a1"]

    assert not await is_full(stand)


async def test_nothing_is_left_of_the_count_when_all_have_ended(stand: Stand) -> None:
    await submit(stand, "a1")
    await submit(stand, "a2")
    for _ in range(2):
        _ = await stand.broker.complete(await claim(stand), Result("r", 1, "text/plain", "0" * 64))

    assert await stand.operator.residue() == []


async def test_a_record_that_an_operator_removed_takes_no_place_for_ever(stand: Stand) -> None:
    await submit(stand, "a1")
    await submit(stand, "a2")

    await stand.operator.delete_record("a1")

    assert not await is_full(stand)
