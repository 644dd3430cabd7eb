"""How fast a queue moves, as this process saw it over the last minute."""

from __future__ import annotations

from collections import deque
from typing import Final

from queuecore.clock import monotonic

WINDOW_SECONDS: Final = 60.0
_MOST: Final = 100_000


class Rate:
    """Events a second over the window."""

    def __init__(self) -> None:
        self._moments: deque[float] = deque(maxlen=_MOST)

    def tick(self) -> None:
        """One happened now."""
        self._moments.append(monotonic())

    def per_second(self) -> float:
        """The mean over the window."""
        oldest = monotonic() - WINDOW_SECONDS
        while self._moments and self._moments[0] < oldest:
            _ = self._moments.popleft()
        return round(len(self._moments) / WINDOW_SECONDS, 3)


class Rates:
    """Of one model."""

    def __init__(self) -> None:
        self.submitted = Rate()
        self.finished = Rate()
