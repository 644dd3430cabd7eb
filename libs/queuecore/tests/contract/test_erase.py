"""A finished job that its client deletes is gone at once, and said to be."""

from __future__ import annotations

import pytest

from queuecore.broker import NewJob
from queuecore.errors import JobExpired, JobNotFound, WrongState
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


@requirement("retention:erase:gone-with-a-cause")
async def test_erased_job_is_gone_with_its_cause_until_the_tombstone_ends(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j1", fields={"tenant": "t", "service_type": "s"}))
    with pytest.raises(WrongState):
        await stand.broker.erase("j1")
    _ = await stand.broker.cancel("j1")

    await stand.broker.erase("j1")

    with pytest.raises(JobExpired) as raised:
        _ = await stand.broker.get("j1")
    wanted = {"cause": "deleted", "status": "cancelled", "tenant": "t", "service_type": "s"}
    assert wanted.items() <= raised.value.tombstone.items()
    with pytest.raises(JobExpired):
        await stand.broker.erase("j1")
    assert list((await stand.broker.jobs()).jobs) == []
    with pytest.raises(JobNotFound):
        await stand.broker.erase("j2")
