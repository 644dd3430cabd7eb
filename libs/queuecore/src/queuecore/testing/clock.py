"""A clock that tests move, and the one way tests wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class ManualClock:
    """Epoch milliseconds that only ``advance`` moves."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self.now_ms += milliseconds


async def eventually(
    probe: Callable[[], Awaitable[T]] | Callable[[], T], *, within: float = 5, every: float = 0.02
) -> T:
    """The first true value of ``probe``, or ``AssertionError`` with the last one after ``within`` seconds."""
    end = time.monotonic() + within
    while True:
        value = probe()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value  # pyright: ignore[reportReturnType]  the awaitable was awaited above
        if time.monotonic() > end:
            raise AssertionError(f"still {value!r} after {within} s: {getattr(probe, '__name__', probe)}")
        await asyncio.sleep(every)
