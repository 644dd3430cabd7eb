"""Steps that must reach their end although the task around them is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from queuecore.clock import monotonic

T = TypeVar("T")


async def uninterrupted(work: Coroutine[Any, Any, T], *, grace_seconds: float | None = None) -> T:
    """The result of ``work``; a cancellation that arrives meanwhile is raised once ``work`` has ended.

    ``grace_seconds`` after that cancellation ``work`` is cancelled too; None waits to the end, which is the only safe
    choice for a thread: it cannot be stopped, and its file may not be closed under it.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    end: float | None = None
    while not task.done():
        try:
            _ = await asyncio.wait([task], timeout=None if end is None else max(0.0, end - monotonic()))
        except asyncio.CancelledError as error:
            cancelled = error
            if end is None and grace_seconds is not None:
                end = monotonic() + grace_seconds
        if end is not None and monotonic() >= end:
            _ = task.cancel()
    if cancelled is not None:
        if not task.cancelled():
            _ = task.exception()  # looked at: the cancellation is what the caller hears
        raise cancelled
    return task.result()
