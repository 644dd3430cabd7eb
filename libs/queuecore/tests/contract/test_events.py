"""Verdicts on their way out, and the index of jobs."""

from __future__ import annotations

import pytest

from queuecore.broker import NewJob, Result, Worker
from queuecore.errors import JobNotFound
from queuecore.job import Status
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


@requirement("notice:events:until-acknowledged", "notice:any:one-event-per-verdict")
async def test_an_event_is_given_to_one_consumer_and_gone_once_acknowledged(stand: Stand) -> None:
    for name in ("a", "b"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
        _ = await stand.broker.cancel(name)
    (first,) = await stand.broker.events("g1", limit=1)
    (second,) = await stand.broker.events("g2")
    assert [(one.event_id, one.status) for one in (first, second)] == [
        ("a:1", Status.CANCELLED),
        ("b:1", Status.CANCELLED),
    ]
    assert list(await stand.broker.events("g3", wait_seconds=0.01)) == []
    assert (await stand.broker.counts()).outbox == 2
    await stand.broker.acknowledge([first.entry, second.entry])
    await stand.broker.acknowledge([first.entry])
    await stand.broker.acknowledge([])
    assert (await stand.broker.counts()).outbox == 0


ODD = 'a "quoted" \\ /slash\\u0000 ü \x00'


@requirement("notice:erase:told-as-it-was")
async def test_a_client_that_wants_to_be_told_is_told_of_a_job_that_is_erased(stand: Stand) -> None:
    fields = {"callback_url": "https://h/", "tenant": "t", "params": "not for the client", "input_filename": ODD}
    _ = await stand.broker.submit(NewJob(id="a", fields=fields))
    claim = await stand.broker.claim(Worker("w"), "c")
    assert claim is not None
    _ = await stand.broker.complete(claim, Result("r", 7, "text/plain", "0" * 64))
    before = await stand.broker.get("a")
    await stand.broker.erase("a")

    (event,) = await stand.broker.events("g")

    told = event.record
    assert told is not None
    assert (told.id, told.status, told.result_size, told.input_filename) == ("a", Status.COMPLETED, 7, ODD)
    assert (told.finished_at, told.expires_at, told.event_id) == (before.finished_at, before.expires_at, event.event_id)


@requirement("notice:erase:told-as-it-was")
async def test_a_client_is_told_of_the_verdict_and_not_of_the_run_after_it(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={"callback_url": "https://h/"}))
    for _ in range(stand.limits.max_reap_attempts + 1):
        assert await stand.broker.claim(Worker("w"), "c") is not None
        stand.clock.advance(stand.limits.lease_ms + 1)
        _ = await stand.broker.reap()
    await stand.broker.redrive("a")

    (event,) = await stand.broker.events("g")

    assert event.record is not None
    assert (event.record.status, event.record.error_code) == (Status.FAILED, "worker_lost")
    assert (event.record.generation, (await stand.broker.get("a")).generation) == (1, 2)


async def test_nobody_elses_verdict_carries_a_record(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    _ = await stand.broker.cancel("a")
    (event,) = await stand.broker.events("g")
    assert event.record is None


async def test_jobs_are_listed_newest_first_with_a_cursor_that_new_jobs_do_not_move(stand: Stand) -> None:
    for number in range(4):
        _ = await stand.broker.submit(NewJob(id=f"j{number}", fields={"tenant": "even" if number % 2 == 0 else "odd"}))
        stand.clock.advance(number % 2)  # two share a millisecond
    page = await stand.broker.jobs(limit=2)
    assert [job.id for job in page.jobs] == ["j3", "j2"]
    _ = await stand.broker.submit(NewJob(id="j4", fields={}))
    rest = await stand.broker.jobs(limit=9, cursor=page.cursor)
    assert [job.id for job in rest.jobs] == ["j1", "j0"]
    assert rest.cursor == ""

    _ = await stand.broker.cancel("j1")
    assert [job.id for job in (await stand.broker.jobs(status=Status.CANCELLED)).jobs] == ["j1"]
    assert [job.id for job in (await stand.broker.jobs(tenant="even")).jobs] == ["j2", "j0"]


async def test_positions_are_those_of_the_pop_order(stand: Stand) -> None:
    for name in ("a", "b"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    _ = await stand.broker.submit(NewJob(id="u", fields={}, priority=stand.first, deadline=stand.clock.now_ms + 9_000))
    assert [await stand.broker.position(one) for one in ("u", "a", "b", "c")] == [0, 1, 2, None]
    assert await stand.broker.position("b", limit=2) is None
    with pytest.raises(JobNotFound):
        _ = await stand.broker.get("c")
    stand.clock.advance(700)
    assert (await stand.broker.counts()).oldest_pending_ms == 700
