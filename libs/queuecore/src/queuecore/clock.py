"""The only place that waits and the only clock of the processes.

Queue time is the server's (`TIME` in scripts); a process compares only its own monotonic clock with itself (G10).
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


def monotonic() -> float:
    """Seconds on this process's own clock; never compare with another process."""
    return time.monotonic()


def wall_ns() -> int:
    """The machine's wall clock, epoch nanoseconds: for traces, which show it to people, and for nothing else."""
    return time.time_ns()


async def sleep(seconds: float) -> None:
    """Let other tasks run for ``seconds``."""
    await asyncio.sleep(seconds)


def rfc3339(milliseconds: int) -> str:
    """Epoch milliseconds as RFC 3339 text in UTC, with milliseconds."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_rfc3339(text: str) -> int:
    """RFC 3339 text with an offset as epoch milliseconds; ``ValueError`` otherwise."""
    if len(text) < len("2026-01-31T12:00:00Z") or text[10] not in "Tt ":
        raise ValueError("not an RFC 3339 time such as 2026-01-31T12:00:00Z")
    try:
        moment = datetime.fromisoformat(text.replace("z", "Z"))
    except ValueError as error:
        raise ValueError("not an RFC 3339 time such as 2026-01-31T12:00:00Z") from error
    if moment.tzinfo is None:
        raise ValueError("an RFC 3339 time needs an offset, such as Z or +02:00")
    return round(moment.timestamp() * 1000)
