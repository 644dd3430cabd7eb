from __future__ import annotations

import pytest

from queuecore.broker import NewJob, Result, Worker
from queuecore.job import Status
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


@requirement("pause:pause:hidden-and-kept")
async def test_a_paused_queue_shows_nothing_to_do_accepts_jobs_and_lets_running_ones_end(stand: Stand) -> None:
    for name in ("a", "b", "c"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    claim = await stand.broker.claim(Worker("w"), "c1")
    assert claim is not None
    await stand.broker.pause()
    await stand.broker.pause()
    _ = await stand.broker.submit(NewJob(id="d", fields={}))
    counts = await stand.broker.counts()
    assert (counts.pending, counts.processing, counts.paused, counts.paused_reason) == (0, 1, 3, "operator")
    assert await stand.broker.claim(Worker("w"), "c2") is None
    assert await stand.broker.complete(claim, Result("k", 1, "t/t", "0")) is Status.COMPLETED


async def test_pausing_an_empty_queue_holds_later_jobs(stand: Stand) -> None:
    await stand.broker.pause()
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    assert await stand.broker.claim(Worker("w"), "c1") is None
