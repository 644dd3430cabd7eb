from __future__ import annotations

import pytest

from queuecore.broker import NewJob, Result, Worker
from queuecore.errors import ClaimLost
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


@requirement("run:revoke:hung-job-ends")
async def test_a_job_past_its_limit_fails_although_its_lease_lives(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    claim = await stand.broker.claim(Worker("w"), "c1", execution_ms=100_000)
    assert claim is not None
    for _ in range(2):
        stand.clock.advance(50_000)
        _ = await stand.broker.renew(claim)
    assert list(await stand.broker.revoke(grace_ms=5_000)) == []
    stand.clock.advance(5_000)

    assert list(await stand.broker.revoke(grace_ms=5_000)) == ["a"]
    record = await stand.broker.get("a")
    assert (record.status, record.error_code, record.fence) == ("failed", "execution_timeout", 2)
    with pytest.raises(ClaimLost):
        _ = await stand.broker.renew(claim)
    with pytest.raises(ClaimLost):
        _ = await stand.broker.complete(claim, Result("k", 1, "t/t", "0"))
    assert await stand.operator.residue() == []


async def test_revoking_a_flagged_job_cancels_it(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    assert await stand.broker.claim(Worker("w"), "c1", execution_ms=1_000) is not None
    _ = await stand.broker.cancel("a")
    stand.clock.advance(1_000)
    assert list(await stand.broker.revoke(grace_ms=0)) == ["a"]
    record = await stand.broker.get("a")
    assert (record.status, record.error_code) == ("cancelled", "cancelled")
