from __future__ import annotations

import pytest

from queuecore.broker import NewJob, Worker
from queuecore.errors import ClaimLost
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


@requirement("lease:renew:owner-keeps-its-job", "reap:reap:live-lease-left-alone")
async def test_renewing_keeps_a_job_for_as_long_as_it_takes(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    claim = await stand.broker.claim(Worker("w"), "c1")
    assert claim is not None
    for _ in range(10):
        stand.clock.advance(59_000)
        assert await stand.broker.renew(claim) == (False,)
        assert [one.outcome for one in await stand.broker.reap()] == ["live"]
    assert (await stand.broker.get("j1")).reaps == 0


@requirement("lease:renew:owner-keeps-its-job")
async def test_a_lapsed_lease_that_nobody_reaped_revives(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    claim = await stand.broker.claim(Worker("w"), "c1")
    assert claim is not None
    stand.clock.advance(120_000)
    _ = await stand.broker.renew(claim)

    assert [one.outcome for one in await stand.broker.reap()] == ["live"]


@requirement("fence:renew:stale-refused", "fence:renew:requeued-refused")
async def test_the_owner_of_a_requeued_job_cannot_renew_it(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    claim = await stand.broker.claim(Worker("w"), "c1")
    assert claim is not None
    stand.clock.advance(60_001)
    _ = await stand.broker.reap()

    with pytest.raises(ClaimLost):
        _ = await stand.broker.renew(claim)
    again = await stand.broker.claim(Worker("other"), "c2")
    assert again is not None
    with pytest.raises(ClaimLost):
        _ = await stand.broker.renew(claim)


@requirement("fence:renew:stale-refused")
async def test_a_wrong_claim_id_with_the_right_fence_is_refused(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    claim = await stand.broker.claim(Worker("w"), "c1")
    assert claim is not None

    with pytest.raises(ClaimLost):
        _ = await stand.broker.renew(claim._replace(claim_id="c2"))
    with pytest.raises(ClaimLost):
        _ = await stand.broker.renew(claim._replace(fence=2))


async def test_renew_registers_the_owners_new_connection_and_reports_a_cancel(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={}))
    claim = await stand.broker.claim(Worker("w", "run:1"), "c1")
    assert claim is not None
    _ = await stand.broker.renew(claim, "run:2")
    assert [one.client for one in await stand.broker.owners()] == ["run:2"]
    _ = await stand.broker.renew(claim)
    assert [one.client for one in await stand.broker.owners()] == ["run:2"]

    _ = await stand.broker.cancel("j1")
    assert await stand.broker.renew(claim) == (True,)
