from __future__ import annotations

import pytest

from queuecore.broker import NewJob, Worker
from queuecore.errors import QueueFull
from queuecore.job import Status
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio
WORKER = Worker("w")


@requirement("submit:submit:one-step")
async def test_a_submitted_job_is_pending_with_every_field_as_given(stand: Stand) -> None:
    params = (
        '{"seed": 9223372036854775807, "empty": [], "nested": {"b": 1, "a": null}, "text": "\\u00fc \\ud83d\\ude00"}'
    )
    created = await stand.broker.submit(NewJob(id="j1", fields={"params": params, "input_filename": 'a"b\\c/ü\n'}))

    assert created == (True, Status.PENDING, stand.clock.now_ms)
    record = await stand.broker.get("j1")
    assert (record.status, record.generation, record.created_at) == ("pending", 1, stand.clock.now_ms)
    assert record.params == params
    assert record.input_filename == 'a"b\\c/ü\n'
    assert (await stand.operator.places()).pending == ["j1"]


@requirement("unknown:submit:repeat-changes-nothing")
async def test_a_repeated_submit_answers_the_same_job_and_adds_nothing(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    again = await stand.broker.submit(NewJob(id="j1", fields={}))

    assert again == (False, Status.PENDING, 0)
    assert (await stand.operator.places()).pending == ["j1"]

    claim = await stand.broker.claim(WORKER, "c1")
    assert claim is not None
    assert await stand.broker.submit(NewJob(id="j1", fields={})) == (False, Status.PROCESSING, 0)
    assert (await stand.operator.places()).pending == []


@requirement("submit:submit:full-queue-refuses")
async def test_a_full_queue_refuses_and_changes_nothing(stand: Stand) -> None:
    for number in range(5):
        _ = await stand.broker.submit(NewJob(id=f"j{number}", fields={}))

    with pytest.raises(QueueFull, match="maximum of 5"):
        _ = await stand.broker.submit(NewJob(id="j5", fields={}))

    assert len((await stand.operator.places()).pending) == 5
    assert [job.id for job in (await stand.broker.jobs()).jobs] == ["j4", "j3", "j2", "j1", "j0"]


async def test_delayed_and_ordered_and_paused_jobs_count_towards_the_maximum(stand: Stand) -> None:
    now = stand.clock.now_ms
    _ = await stand.broker.submit(NewJob(id="j0", fields={}, not_before=now + 1000))
    _ = await stand.broker.submit(NewJob(id="j1", fields={}, ordering_key="k"))
    _ = await stand.broker.submit(NewJob(id="j2", fields={}, ordering_key="k"))
    await stand.broker.pause()
    _ = await stand.broker.submit(NewJob(id="j3", fields={}))
    _ = await stand.broker.submit(NewJob(id="j4", fields={}))

    with pytest.raises(QueueFull):
        _ = await stand.broker.submit(NewJob(id="j5", fields={}))

    counts = await stand.broker.counts()
    assert (counts.pending, counts.delayed, counts.ordered, counts.paused) == (0, 1, 1, 3)


async def test_priority_means_what_the_order_of_the_queue_says(stand: Stand) -> None:
    for name, priority in (("a", ""), ("b", stand.first), ("c", ""), ("d", stand.first)):
        _ = await stand.broker.submit(NewJob(id=name, fields={}, priority=priority or stand.usual))
        stand.clock.advance(1)

    assert (await stand.operator.places()).pending == {
        "arrival": ["d", "b", "a", "c"],  # the last such is first
        "lanes": ["b", "d", "a", "c"],
        "deadline": ["a", "b", "c", "d"],  # deadlines alone count
        "priority": ["b", "d", "a", "c"],
        "stage": ["b", "d", "a", "c"],
    }[stand.limits.order]


async def test_a_deadline_means_what_the_order_of_the_queue_says(stand: Stand) -> None:
    now = stand.clock.now_ms
    for name, wait in (("a", None), ("b", 9_000), ("c", 3_000), ("d", 9_000)):
        deadline = None if wait is None else now + wait
        _ = await stand.broker.submit(NewJob(id=name, fields={}, deadline=deadline))

    earliest_first = ["c", "b", "d", "a"]
    expected = earliest_first if stand.limits.order == "deadline" else ["a", "b", "c", "d"]
    assert (await stand.operator.places()).pending == expected


@requirement("promote:promote:due-job-returns")
async def test_a_job_that_is_not_due_is_invisible_until_promoted(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="late", fields={}, not_before=stand.clock.now_ms + 1000))
    assert await stand.broker.claim(WORKER, "c1") is None
    assert await stand.broker.promote() == 0

    stand.clock.advance(1000)
    assert await stand.broker.promote() == 1
    claim = await stand.broker.claim(WORKER, "c1")
    assert claim is not None
    assert claim.record.queue_wait_ms == 0, "waiting for not_before is the client's wish, not the queue's delay"
