"""Verdicts on their way out, and the index of jobs."""

from __future__ import annotations

import pytest

from queuecore.broker import NewJob
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
