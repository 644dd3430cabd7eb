from __future__ import annotations

import pytest

from queuecore.broker import NewJob
from queuecore.testing.operator import Stand

pytestmark = pytest.mark.anyio


async def test_due_jobs_enter_where_the_order_of_the_queue_puts_them(stand: Stand) -> None:
    now = stand.clock.now_ms
    _ = await stand.broker.submit(NewJob(id="normal", fields={}))
    stand.clock.advance(1)
    _ = await stand.broker.submit(NewJob(id="second", fields={}, not_before=now + 2_000))
    stand.clock.advance(1)
    _ = await stand.broker.submit(NewJob(id="first", fields={}, not_before=now + 1_000))
    stand.clock.advance(1)
    _ = await stand.broker.submit(NewJob(id="urgent", fields={}, not_before=now + 1_500, priority=stand.first))
    stand.clock.advance(2_000)

    assert await stand.broker.promote(limit=2) == 2
    assert await stand.broker.promote() == 1
    assert (await stand.operator.places()).pending == {
        "arrival": ["urgent", "normal", "first", "second"],
        "lanes": ["urgent", "normal", "first", "second"],
        "deadline": ["normal", "second", "first", "urgent"],  # none has a deadline: the oldest first
        "priority": ["urgent", "normal", "second", "first"],
        "stage": ["urgent", "normal", "second", "first"],
    }[stand.limits.order]


async def test_promoting_into_a_paused_queue_stays_hidden(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}, not_before=stand.clock.now_ms + 10))
    await stand.broker.pause()
    stand.clock.advance(10)
    assert await stand.broker.promote() == 1
    assert (await stand.operator.places()) == ([], [], ["a"], [], [])


async def test_an_operators_pause_is_not_ended_by_time(stand: Stand) -> None:
    await stand.broker.pause(reason="breaker", cooldown_ms=10)
    await stand.broker.pause()
    stand.clock.advance(1_000_000)
    _ = await stand.broker.promote()
    assert (await stand.broker.counts()).paused_reason == "operator"
