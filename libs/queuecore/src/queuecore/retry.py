"""When to try again: exponential backoff with full jitter, and what a server's Retry-After asks for. Pure.

Full jitter (a uniform draw from zero to the exponential bound) spreads callers that failed together best.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple

_draw: Final[Callable[[], float]] = random.random  # noqa: S311  spreads callers; nothing secret hangs on it
_LARGEST_EXPONENT: Final = 63  # beyond it any bound is the cap; 2.0**1024 would overflow


class Backoff(NamedTuple):
    """The bound doubles from ``first_seconds`` with every failure, up to ``most_seconds``."""

    first_seconds: float
    most_seconds: float

    def bound_seconds(self, failures: int) -> float:
        """The longest pause after ``failures`` failures (the first is 1)."""
        exponent = min(max(failures, 1) - 1, _LARGEST_EXPONENT)
        return min(self.most_seconds, self.first_seconds * 2.0**exponent)

    def pause_seconds(self, failures: int, draw: Callable[[], float] = _draw) -> float:
        """A pause with full jitter; ``draw`` gives numbers from 0 to 1."""
        return self.bound_seconds(failures) * draw()


class RetryPolicy(NamedTuple):
    """How often a job may run after failures, and how long it waits in between."""

    max_attempts: int
    backoff: Backoff
    longest_retry_after_seconds: float = 3600

    def delay_seconds(
        self,
        failures: int,
        *,
        retry_after_seconds: float | None = None,
        left_seconds: float | None = None,
        draw: Callable[[], float] = _draw,
    ) -> float | None:
        """How long to wait after failure number ``failures``; None when it was the last.

        A server's Retry-After is a lower bound, itself capped: an answer of a year must not park a job for a year.
        ``left_seconds`` is the time until the job's deadline: a wait that would pass it is pointless, hence None.
        """
        if failures >= self.max_attempts:
            return None
        delay = self.backoff.pause_seconds(failures, draw)
        if retry_after_seconds is not None:
            delay = max(delay, min(retry_after_seconds, self.longest_retry_after_seconds))
        if left_seconds is not None and delay >= left_seconds:
            return None
        return delay


def retry_after_seconds(value: str | None, date: str | None) -> float | None:
    """A Retry-After header (RFC 9110 §10.2.3) as seconds; None when there is none or it cannot be read.

    A time is compared with the ``Date`` header of the same answer, so that only the server's own clock is used; without
    one it is ignored.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])  # longer numbers are centuries: the cap of the policy decides
    moment, now = _http_date(text), _http_date((date or "").strip())
    if moment is None or now is None:
        return None
    return max(0.0, moment - now)


def _http_date(text: str) -> float | None:
    from email.utils import mktime_tz, parsedate_tz  # noqa: PLC0415  rare, and the relay's cold start does not need it

    parsed = parsedate_tz(text) if text else None
    if parsed is None:
        return None
    try:
        return float(mktime_tz(parsed))
    except (ValueError, OverflowError):
        return None
