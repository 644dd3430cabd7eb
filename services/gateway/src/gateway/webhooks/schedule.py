"""What follows an attempt: nothing more, or another one, later each time, for a day."""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from gateway.webhooks.deliver import Answer
from queuecore.notice import NoticeStatus

FIRST_MS: Final = 1_000
LONGEST_MS: Final = 3_600_000
WHOLE_MS: Final = 86_400_000
JITTER: Final = 0.2
GONE: Final = 410


class Next(NamedTuple):
    """Where the notice stands now; ``in_ms`` is of use while it is pending. ``outcome`` is the metric's word."""

    status: NoticeStatus
    outcome: str
    in_ms: int = 0


def after(answer: Answer, attempt: int, planned_ago_ms: int) -> Next:
    """Delivered, stopped (410), parked (an address that is not allowed, or a day is over), or again.

    1 s, 2 s, 4 s … one hour, each 20 % more or less, never before the receiver's Retry-After.
    """
    if answer.refused:
        return Next(NoticeStatus.PARKED, "blocked")
    if answer.status is not None and 200 <= answer.status < 300:  # noqa: PLR2004  success, as HTTP counts
        return Next(NoticeStatus.DELIVERED, "delivered")
    if answer.status == GONE:
        return Next(NoticeStatus.STOPPED, "refused")
    delay_ms = min(LONGEST_MS, FIRST_MS * 2 ** min(attempt - 1, 30)) * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
    if answer.retry_after_seconds is not None:
        delay_ms = max(delay_ms, answer.retry_after_seconds * 1000)
    if planned_ago_ms + delay_ms > WHOLE_MS:
        return Next(NoticeStatus.PARKED, "parked")
    return Next(NoticeStatus.PENDING, "retried", int(delay_ms))
