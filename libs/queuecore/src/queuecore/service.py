"""The frame of a process: signals first, then work, then a bounded stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. Call it first thing: a signal before it would end the process."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    return event


async def repeat(work: Callable[[], Awaitable[object]], *, every_seconds: float, stop: asyncio.Event) -> None:
    """Run ``work`` again and again, ``every_seconds`` after its end, until ``stop``; errors are the caller's."""
    while not stop.is_set():
        _ = await work()
        try:
            async with asyncio.timeout(every_seconds):
                _ = await stop.wait()
        except TimeoutError:
            continue
