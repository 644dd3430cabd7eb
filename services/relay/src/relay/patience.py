"""Waits that repeat a call to Redis until it answers, and end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from queuecore.clock import monotonic, sleep
from queuecore.errors import BrokerUnavailable, OutcomeUnknown
from queuecore.retry import Backoff
from queuecore.telemetry.names import Event

T = TypeVar("T")
_BACKOFF: Final = Backoff(0.1, 2)
# A call that lasted longer than connecting and waiting for a reply may take was a pop, and what it waited on was there.
_WORKED_SECONDS: Final = 30.0
_log = logging.getLogger(__name__)


async def until_answered(call: Callable[[], Awaitable[T]], *, within_seconds: float) -> T:
    """The call's value. It is repeated after an unknown outcome too: every verb answers a repeat alike (G11).

    Raises:
        BrokerUnavailable, OutcomeUnknown: no answer for ``within_seconds``.
    """
    failures = 0
    broken_since = monotonic()
    while True:
        began = monotonic()
        try:
            value = await call()
        except (BrokerUnavailable, OutcomeUnknown) as error:
            now = monotonic()
            if now - began > _WORKED_SECONDS:
                failures, broken_since = 0, now
            failures += 1
            pause = _BACKOFF.pause_seconds(failures)
            if now - broken_since + pause > within_seconds:
                raise
            if failures == 1:
                _log.warning(
                    "Redis does not answer; trying again",
                    extra={"event": Event.CONNECTION_LOST, "error": str(error)},
                )
            await sleep(pause)
        else:
            if failures:
                _log.info("Redis answers again", extra={"event": Event.CONNECTION_RESTORED})
            return value
