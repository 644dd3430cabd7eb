from __future__ import annotations

import pytest

from queuecore.broker import NewJob, Worker
from queuecore.testing.operator import Stand

pytestmark = pytest.mark.anyio


async def test_purging_cancels_everything_that_waits_and_nothing_that_runs(stand: Stand) -> None:
    now = stand.clock.now_ms
    _ = await stand.broker.submit(NewJob(id="runs", fields={}))
    assert await stand.broker.claim(Worker("w"), "c1") is not None
    _ = await stand.broker.submit(NewJob(id="a", fields={}, ordering_key="k"))
    _ = await stand.broker.submit(NewJob(id="b", fields={}, ordering_key="k"))
    _ = await stand.broker.submit(NewJob(id="later", fields={}, not_before=now + 1_000))
    _ = await stand.broker.submit(NewJob(id="c", fields={}))
    total = 0
    while count := await stand.broker.purge(limit=2):
        total += count

    assert total == 4
    for name in ("a", "b", "c", "later"):
        record = await stand.broker.get(name)
        assert (record.status, record.error_code) == ("cancelled", "purged")
    assert (await stand.operator.places()) == ([], ["runs"], [], [], [])
    assert (await stand.broker.counts()).outbox == 4
