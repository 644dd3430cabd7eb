from __future__ import annotations

import pytest

from queuecore.broker import NewJob
from queuecore.testing.operator import Stand

pytestmark = pytest.mark.anyio


async def test_entries_without_a_record_leave_both_lists_and_live_ones_stay(stand: Stand) -> None:
    for name in ("held", "gone", "good"):
        stand.clock.advance(1)
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    assert await stand.operator.pop() == "held"
    await stand.operator.delete_record("held")
    await stand.operator.delete_record("gone")

    assert sorted(await stand.broker.sweep()) == [("gone", "pending"), ("held", "processing")]
    assert (await stand.operator.places()) == (["good"], [], [], [], [])
    assert list(await stand.broker.sweep()) == []
