from __future__ import annotations

import pytest

from queuecore.broker import NewJob, Worker
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


@requirement("pause:pause:hidden-and-kept")
async def test_resuming_brings_everything_back_in_its_order(stand: Stand) -> None:
    for name in ("a", "b"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    await stand.broker.pause()
    _ = await stand.broker.submit(NewJob(id="c", fields={}))
    _ = await stand.broker.submit(NewJob(id="urgent", fields={}, priority=stand.first))
    await stand.broker.resume()
    await stand.broker.resume()
    order = ["a", "b", "c", "urgent"] if stand.limits.order == "deadline" else ["urgent", "a", "b", "c"]
    assert (await stand.operator.places()) == (order, [], [], [], [])
    assert (await stand.broker.counts()).paused_reason == ""


async def test_what_an_operator_moved_meanwhile_is_ahead(stand: Stand) -> None:
    for name in ("a", "b"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    _ = await stand.operator.pop()
    await stand.broker.pause()
    await stand.operator.move_back()
    await stand.broker.resume()
    assert (await stand.operator.places()).pending == ["a", "b"]
    assert await stand.broker.claim(Worker("w"), "c1") is not None
