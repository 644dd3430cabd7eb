"""What a model says on the way: the newest line of an answer that comes as NDJSON or as an event stream.

A line that is longer than ``LONGEST_BYTES`` is passed over, so what is kept is bounded whatever the model writes.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from queuecore.broker import Progress
from queuecore.clock import sleep
from queuecore.errors import BrokerError, ClaimLost
from queuecore.telemetry.names import Event

LONGEST_BYTES: Final = 4_096
PAUSE_SECONDS: Final = 0.5  # at most two a second
_EVENTS: Final = re.compile(r"text/event-stream\b")
_LINES: Final = re.compile(r"application/(x-ndjson|ndjson|jsonl|x-jsonlines|json-seq)\b")
_log = logging.getLogger(__name__)


class Spoken:
    """Fed with the answer's chunks as they pass; ``newest`` is None as long as no line is whole."""

    def __init__(self, content_type: str) -> None:
        self._events = bool(_EVENTS.match(content_type))
        self.speaks = self._events or bool(_LINES.match(content_type))
        self.newest: Progress | None = None
        self.news = asyncio.Event()
        self._count = 0
        self._part = b""  # of a line whose end has not come
        self._too_long = False
        self._data: list[bytes] = []
        self._data_bytes = 0  # of its lines with their names, so that empty ones count too

    def feed(self, chunk: bytes) -> None:
        """The next part of the answer."""
        if not self.speaks:
            return
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            if not self._too_long and len(self._part) + len(line) <= LONGEST_BYTES:
                self._line((self._part + line).strip(b"\r\x1e"))
            self._part, self._too_long = b"", False
        self._too_long = self._too_long or len(self._part) + len(rest) > LONGEST_BYTES
        self._part = b"" if self._too_long else self._part + rest

    def _line(self, line: bytes) -> None:
        if not self._events:
            if line.strip():
                self._say(line)
        elif line.startswith(b"data:"):
            self._data_bytes += len(line)
            if self._data_bytes <= LONGEST_BYTES:
                self._data.append(line[5:].removeprefix(b" "))
            else:
                self._data.clear()  # a part would read as if it were the whole
        elif not line:
            text, heard = b"\n".join(self._data), bool(self._data)
            self._data.clear()
            self._data_bytes = 0
            if heard and text != b"[DONE]":  # how OpenAI's streams end
                self._say(text)

    def _say(self, text: bytes) -> None:
        self._count += 1
        self.newest = Progress(self._count, text.decode("utf-8", "replace"))
        self.news.set()


@asynccontextmanager
async def told(spoken: Spoken, report: Callable[[Progress], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Report the newest line while the answer comes, the first at once. Nothing that goes wrong here ends the run."""
    if not spoken.speaks:
        yield
        return
    task = asyncio.create_task(_tell(spoken, report))
    try:
        yield
    finally:
        _ = task.cancel()
        _ = await asyncio.wait({task})


async def _tell(spoken: Spoken, report: Callable[[Progress], Awaitable[None]]) -> None:
    while True:
        _ = await spoken.news.wait()
        spoken.news.clear()
        if spoken.newest is not None:
            try:
                await report(spoken.newest)
            except ClaimLost:
                return  # the liveness thread ends the run
            except BrokerError as error:
                _log.info("a run's progress was not told: %s", error, extra={"event": Event.CONNECTION_LOST})
        await sleep(PAUSE_SECONDS)
