"""Budgets in memory: the executable specification of ``Buckets``."""

from __future__ import annotations

import math
from collections.abc import Callable

from queuecore.bucket import Buckets, Spent


class MemoryBuckets(Buckets):
    """See ``Buckets``."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.levels: dict[str, tuple[float, int]] = {}

    async def spend(self, name: str, cost: int, *, capacity: int, window_ms: int, owed: bool = False) -> Spent:
        now, rate = self._clock(), capacity / window_ms
        level, at = self.levels.get(name, (capacity, now))
        level = min(capacity, level + (now - at) * rate)
        if cost > level and not owed:
            return Spent(allowed=False, remaining=max(0, math.floor(level)), retry_ms=math.ceil((cost - level) / rate))
        self.levels[name] = level - cost, now
        return Spent(allowed=True, remaining=max(0, math.floor(level - cost)))
