"""What a run says on the way: heard from the current owner only, and no part of the job's state."""

from __future__ import annotations

import pytest

from queuecore.broker import Claim, NewJob, Progress, Result, Worker
from queuecore.errors import ClaimLost
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = [pytest.mark.anyio, requirement("wait:events:model-is-heard")]
TEXT = '{"n": 1.50, "ü": "a b\\u0000"} '


async def claim(stand: Stand) -> Claim:
    claimed = await stand.broker.claim(Worker("w"), "c")
    assert claimed is not None
    return claimed


async def heard(stand: Stand) -> Progress | None:
    return await stand.broker.progress(await stand.broker.get("j"))


async def test_the_newest_word_is_what_is_read(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j", fields={}))
    owner = await claim(stand)
    assert await heard(stand) is None

    await stand.broker.report(owner, Progress(1, "one"))
    await stand.broker.report(owner, Progress(7, TEXT))

    assert await heard(stand) == Progress(7, TEXT)


async def test_who_lost_the_claim_is_not_heard_and_its_last_word_is_not_the_next_runs(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j", fields={}))
    lost = await claim(stand)
    await stand.broker.report(lost, Progress(1, "of the first run"))
    stand.clock.advance(stand.limits.lease_ms + 1)
    _ = await stand.broker.reap()

    with pytest.raises(ClaimLost):
        await stand.broker.report(lost, Progress(2, "too late"))
    _ = await claim(stand)

    assert await heard(stand) is None


async def test_nothing_is_heard_after_the_verdict(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j", fields={}))
    owner = await claim(stand)
    _ = await stand.broker.complete(owner, Result("r", 1, "text/plain", "0" * 64))

    with pytest.raises(ClaimLost):
        await stand.broker.report(owner, Progress(1, "late"))


async def test_what_was_heard_goes_with_an_erased_job(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="j", fields={}))
    owner = await claim(stand)
    await stand.broker.report(owner, Progress(1, "one"))
    running = await stand.broker.get("j")
    _ = await stand.broker.complete(owner, Result("r", 1, "text/plain", "0" * 64))
    assert await stand.broker.progress(running) == Progress(1, "one")

    await stand.broker.erase("j")

    assert await stand.broker.progress(running) is None
