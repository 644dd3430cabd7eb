"""How long a half-written thing has stood still, told without anybody else's clock."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

from queuecore.clock import monotonic

K = TypeVar("K", bound=Hashable)


class _Seen(NamedTuple):
    state: object
    since: float


class Unfinished(Generic[K]):
    """First-seen times, kept in this process.

    A write that still grows is alive however old it is, so what counts is the time since its ``state`` (bytes, parts)
    last changed. Only this process's monotonic clock is used; a restart starts the count anew, which merely delays.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._seen: dict[K, _Seen] = {}

    def still_seconds(self, states: Mapping[K, object]) -> dict[K, float]:
        """Seconds since each one was first seen in this state; those not in ``states`` are forgotten."""
        now = self._clock()
        seen: dict[K, _Seen] = {}
        for key, state in states.items():
            before = self._seen.get(key)
            seen[key] = before if before is not None and before.state == state else _Seen(state, now)
        self._seen = seen
        return {key: now - entry.since for key, entry in seen.items()}
