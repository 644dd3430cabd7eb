"""An item is taken once within its window (seed 004), atomically with submit, and free again when it came to nothing."""

from __future__ import annotations

import asyncio

import pytest

from queuecore.broker import Claim, Dedup, Failure, NewJob, Result, Worker
from queuecore.errors import DuplicateItem
from queuecore.job import Status
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = [pytest.mark.anyio, requirement("dedup:submit:one-item")]
DAY_MS = 86_400_000
URL = "https://example.org/a?b=ü c"


async def submit(stand: Stand, job_id: str, *, key: str = URL, tenant: str = "", force: bool = False) -> None:
    _ = await stand.broker.submit(
        NewJob(id=job_id, fields={"tenant": tenant} if tenant else {}, dedup=Dedup(key, force=force))
    )


async def first_of(stand: Stand, job_id: str, **more: str) -> str:
    """Who has the item: the job a submission is told of, or "" when it was accepted."""
    try:
        await submit(stand, job_id, **more)  # pyright: ignore[reportArgumentType]
    except DuplicateItem as error:
        return error.job_id
    return ""


async def claim(stand: Stand) -> Claim:
    claimed = await stand.broker.claim(Worker("w"), "c")
    assert claimed is not None
    return claimed


async def complete(stand: Stand) -> None:
    _ = await stand.broker.complete(await claim(stand), Result("r", 1, "text/plain", "0" * 64))


async def test_a_second_submission_names_the_first_job_and_leaves_nothing(stand: Stand) -> None:
    await submit(stand, "j1")

    assert await first_of(stand, "j2") == "j1"
    assert (await stand.operator.places()).pending == ["j1"]
    assert [job.id for job in (await stand.broker.jobs()).jobs] == ["j1"]
    assert await first_of(stand, "j3", key="another") == ""
    assert await first_of(stand, "j4", tenant="acme") == "", "another tenant's item is another item"


async def test_two_sources_that_submit_one_url_at_once_make_one_item(stand: Stand) -> None:
    told = await asyncio.gather(*(first_of(stand, f"j{number}") for number in range(5)))

    assert told.count("") == 1
    assert len(set(told)) == 2
    assert len((await stand.broker.jobs()).jobs) == 1


async def test_a_repeat_of_the_same_submission_is_no_duplicate(stand: Stand) -> None:
    await submit(stand, "j1")
    await submit(stand, "j1")

    assert [job.id for job in (await stand.broker.jobs()).jobs] == ["j1"]


async def test_a_completed_item_is_taken_for_seven_days_from_its_submission_and_then_again(stand: Stand) -> None:
    await submit(stand, "j1")
    await complete(stand)
    stand.clock.advance(7 * DAY_MS - 1)
    assert await first_of(stand, "j2") == "j1"

    stand.clock.advance(1)

    assert await first_of(stand, "j2") == ""
    assert await first_of(stand, "j3") == "j2"


@pytest.mark.parametrize("end", ["fail", "cancel", "expire"])
async def test_an_item_that_came_to_nothing_is_free_at_once(stand: Stand, end: str) -> None:
    _ = await stand.broker.submit(
        NewJob(id="j1", fields={}, dedup=Dedup(URL), deadline=stand.clock.now_ms + 1000 if end == "expire" else None)
    )
    match end:
        case "fail":
            _ = await stand.broker.fail(await claim(stand), Failure("inference_error", "no"))
        case "cancel":
            _ = await stand.broker.cancel("j1")
        case _:
            stand.clock.advance(1001)
            _ = await stand.broker.expire()

    assert await first_of(stand, "j2") == ""


async def test_a_retry_keeps_the_item(stand: Stand) -> None:
    await submit(stand, "j1")
    _ = await stand.broker.fail(await claim(stand), Failure("inference_error", "busy", retry_in_ms=1000))

    assert await first_of(stand, "j2") == "j1"


async def test_force_takes_it_again_and_the_first_jobs_end_does_not_free_the_seconds_item(stand: Stand) -> None:
    await submit(stand, "j1")
    await submit(stand, "j2", force=True)
    assert await first_of(stand, "j3") == "j2"

    _ = await stand.broker.cancel("j1")

    assert await first_of(stand, "j3") == "j2"
    assert (await stand.broker.get("j2")).status == Status.PENDING


async def test_a_redriven_dead_letter_has_its_item_again(stand: Stand) -> None:
    await submit(stand, "j1")
    for _ in range(stand.limits.max_reap_attempts + 1):
        _ = await claim(stand)
        stand.clock.advance(stand.limits.lease_ms + 1)
        _ = await stand.broker.reap()
    assert (await stand.broker.get("j1")).status == Status.FAILED

    await stand.broker.redrive("j1")

    assert await first_of(stand, "j2") == "j1"


async def test_a_redrive_does_not_take_the_item_from_who_has_it_meanwhile(stand: Stand) -> None:
    await submit(stand, "j1")
    for _ in range(stand.limits.max_reap_attempts + 1):
        _ = await claim(stand)
        stand.clock.advance(stand.limits.lease_ms + 1)
        _ = await stand.broker.reap()
    await submit(stand, "j2")

    await stand.broker.redrive("j1")

    assert await first_of(stand, "j3") == "j2"
