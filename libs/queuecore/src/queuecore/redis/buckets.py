"""Budgets on Redis."""

from __future__ import annotations

from collections.abc import Callable

from queuecore.bucket import Buckets, Spent
from queuecore.errors import ScriptContractError
from queuecore.redis import keys as names
from queuecore.redis import scripts
from queuecore.redis.client import Link


class RedisBuckets(Buckets):
    """One hash each."""

    def __init__(self, link: Link, *, clock: Callable[[], int] | None = None) -> None:
        self._link = link
        self._clock = clock  # tests only: moves the script's clock

    async def spend(self, name: str, cost: int, *, capacity: int, window_ms: int, owed: bool = False) -> Spent:
        reply = await scripts.load("edge/spend", "")(
            self._link,
            {
                "limit": names.limit(name),
                "cost": cost,
                "capacity": capacity,
                "window_ms": window_ms,
                "owed": "1" if owed else "",
                "now": str(self._clock()) if self._clock else "",
            },
        )
        match reply:
            case ["spent", remaining]:
                return Spent(allowed=True, remaining=int(remaining))
            case ["refused", remaining, retry_ms]:
                return Spent(allowed=False, remaining=int(remaining), retry_ms=int(retry_ms))
            case _:
                raise ScriptContractError(f"spend answered {reply}")
