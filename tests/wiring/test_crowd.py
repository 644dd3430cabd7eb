"""A thousand event streams and a thousand long polls on one gateway: all are told of the verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from queuecore.testing.crowd import crowd
from queuecore.testing.requirement import requirement
from queuecore.testing.yard import Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]

EACH: Final = 1_000
WITHIN_SECONDS: Final = 5.0  # `make bench` states the p99; a machine that runs other things gets more


@pytest.mark.timeout(200)
@requirement("wait:any:thousands-are-told")
async def test_two_thousand_clients_are_all_told(yard: Yard, tell: Callable[[str], None]) -> None:
    told = await crowd(yard, streams=EACH, polls=EACH)

    assert len(told.seconds) == 2 * EACH
    assert told.seconds[-1] < WITHIN_SECONDS
    tell(
        f"2,000 clients told: p50 {told.seconds[EACH]:.2f} s, p99 {told.seconds[-20]:.2f} s; {told.bytes_each:.0f} B each"
    )
