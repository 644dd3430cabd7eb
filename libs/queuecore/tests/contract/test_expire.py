from __future__ import annotations

import pytest

from queuecore.broker import NewJob, Worker
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


@requirement("job:expire:deadline-kept", "ordered:any:next-let-in")
async def test_waiting_jobs_expire_at_their_deadline_wherever_they_wait(stand: Stand) -> None:
    now = stand.clock.now_ms
    _ = await stand.broker.submit(NewJob(id="pending", fields={}, deadline=now + 100, ordering_key="k"))
    _ = await stand.broker.submit(NewJob(id="ordered", fields={}, deadline=now + 100, ordering_key="k"))
    _ = await stand.broker.submit(NewJob(id="delayed", fields={}, deadline=now + 100, not_before=now + 50))
    _ = await stand.broker.submit(NewJob(id="later", fields={}, deadline=now + 101))
    assert list(await stand.broker.expire()) == []
    stand.clock.advance(100)

    assert sorted(await stand.broker.expire()) == ["delayed", "ordered", "pending"]
    for name in ("pending", "ordered", "delayed"):
        record = await stand.broker.get(name)
        assert (record.status, record.error_code) == ("expired", "deadline_exceeded")
    assert (await stand.operator.places()) == (["later"], [], [], [], [])
    assert (await stand.broker.counts()).outbox == 3


async def test_a_job_that_waited_too_long_expires_with_that_cause(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="old", fields={}))
    stand.clock.advance(86_400_000)
    assert list(await stand.broker.expire()) == ["old"]
    assert (await stand.broker.get("old")).error_code == "pending_too_long"
    assert await stand.operator.residue() == []


async def test_a_running_job_does_not_expire(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}, deadline=stand.clock.now_ms + 100))
    assert await stand.broker.claim(Worker("w"), "c1") is not None
    stand.clock.advance(200)
    assert list(await stand.broker.expire()) == []
    assert (await stand.broker.get("a")).status == "processing"
