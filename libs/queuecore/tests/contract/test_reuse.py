"""A result answers equal requests (seed 004, ADR 0009): one run however many ask, until it is too old or came to nothing."""

from __future__ import annotations

import asyncio

import pytest

from queuecore.broker import Claim, Failure, NewJob, Result, Reuse, Worker
from queuecore.errors import ResultReused
from queuecore.job import Status
from queuecore.response_cache import cache_key
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = [pytest.mark.anyio, requirement("cache:submit:one-run")]
KEEP_MS = 900_000
KEY = cache_key(["result", "m"], ["tenant", "digest"])


async def answered_by(stand: Stand, job_id: str, *, key: str = KEY, fresh: bool = False, keep_ms: int = KEEP_MS) -> str:
    """The job that answers this request: another one, or its own."""
    try:
        _ = await stand.broker.submit(NewJob(id=job_id, fields={}, reuse=Reuse(key, keep_ms, fresh)))
    except ResultReused as reused:
        return reused.job_id
    return job_id


async def claim(stand: Stand) -> Claim:
    claimed = await stand.broker.claim(Worker("w"), "c")
    assert claimed is not None
    return claimed


async def complete(stand: Stand) -> None:
    _ = await stand.broker.complete(await claim(stand), Result("r", 1, "text/plain", "0" * 64))


async def test_a_hundred_simultaneous_misses_are_one_run(stand: Stand) -> None:
    told = await asyncio.gather(*(answered_by(stand, f"j{number}") for number in range(100)))

    assert len(set(told)) == 1
    assert [job.id for job in (await stand.broker.jobs()).jobs] == [told[0]]
    assert (await stand.operator.places()).pending == [told[0]]


async def test_a_result_answers_until_it_is_too_old(stand: Stand) -> None:
    assert await answered_by(stand, "j1") == "j1"
    stand.clock.advance(2 * KEEP_MS)
    assert await answered_by(stand, "j2") == "j1", "it waits still: its age counts from the verdict"
    await complete(stand)
    stand.clock.advance(KEEP_MS - 1)
    assert await answered_by(stand, "j2") == "j1"
    assert await answered_by(stand, "j3", keep_ms=1000) == "j3", "who asks for a younger one has it made"

    await complete(stand)
    stand.clock.advance(KEEP_MS)

    assert await answered_by(stand, "j4") == "j4"


async def test_another_request_is_another_run(stand: Stand) -> None:
    assert await answered_by(stand, "j1") == "j1"
    assert await answered_by(stand, "j2", key=cache_key(["result", "m"], ["other tenant", "digest"])) == "j2"


async def test_a_repeat_of_the_same_submission_is_the_same_job(stand: Stand) -> None:
    assert await answered_by(stand, "j1") == "j1"
    assert await answered_by(stand, "j1") == "j1"
    assert len((await stand.broker.jobs()).jobs) == 1


@pytest.mark.parametrize("end", ["fail", "cancel", "cancel-running", "expire", "erase"])
async def test_what_came_to_nothing_answers_nobody(stand: Stand, end: str) -> None:
    _ = await stand.broker.submit(
        NewJob(
            id="j1",
            fields={},
            reuse=Reuse(KEY, KEEP_MS),
            deadline=stand.clock.now_ms + 1000 if end == "expire" else None,
        )
    )
    match end:
        case "fail":
            _ = await stand.broker.fail(await claim(stand), Failure("inference_error", "no"))
        case "cancel":
            _ = await stand.broker.cancel("j1")
        case "cancel-running":
            _ = await claim(stand)
            _ = await stand.broker.cancel("j1")
            assert (await stand.broker.get("j1")).status == Status.PROCESSING
        case "erase":
            await complete(stand)
            await stand.broker.erase("j1")
        case _:
            stand.clock.advance(1001)
            _ = await stand.broker.expire()

    assert await answered_by(stand, "j2") == "j2"
    assert await answered_by(stand, "j3") == "j2"


async def test_a_retry_is_still_the_one_run(stand: Stand) -> None:
    assert await answered_by(stand, "j1") == "j1"
    _ = await stand.broker.fail(await claim(stand), Failure("inference_error", "busy", retry_in_ms=1000))

    assert await answered_by(stand, "j2") == "j1"


async def test_a_fresh_run_replaces_what_was_kept_and_an_older_jobs_end_changes_nothing(stand: Stand) -> None:
    assert await answered_by(stand, "j1") == "j1"
    assert await answered_by(stand, "j2", fresh=True) == "j2"

    _ = await stand.broker.cancel("j1")

    assert await answered_by(stand, "j3") == "j2"
