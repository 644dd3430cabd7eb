"""Waiting for the model: GET /health of the inference server until it answers 200.

A few bytes on a socket and no HTTP client: this runs before the first claim, where imports count.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final

from queuecore.clock import monotonic, sleep
from queuecore.telemetry.names import Event
from relay.link import Address, connect

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
_PROBE_SECONDS: Final = 5.0
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")
_log = logging.getLogger(__name__)


class ModelNotReady(Exception):
    """The inference server did not become ready in time; the text says what it answered last."""


async def wait_until_ready(url: str, *, within_seconds: float, waiting: Callable[[], object] = lambda: None) -> None:
    """Poll until 200; ``waiting`` is called when the first look fails (there is time now for other things).

    Raises:
        ModelNotReady: not within ``within_seconds``.
    """
    address = Address.parse(url)
    started = monotonic()
    pause = _FIRST_PAUSE_SECONDS
    while (answer := await probe(address)) != "200":
        if pause == _FIRST_PAUSE_SECONDS:
            _log.info("waiting for the model", extra={"event": Event.INFERENCE_AWAITED, "answer": answer})
            _ = waiting()
        if monotonic() - started + pause > within_seconds:
            raise ModelNotReady(
                f"the inference server at {url} was not ready within {within_seconds:g} s; "
                f"GET /health gave last: {answer} (RELAY_INFERENCE_URL, RELAY_READY_TIMEOUT_SECONDS)"
            )
        await sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)


async def probe(address: Address) -> str:
    """The status code that GET /health answers, or why there is none."""
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            link = await connect(address)
            try:
                lines = (
                    f"GET {address.path}/health HTTP/1.1",
                    f"Host: {address.authority}",
                    "Connection: close",
                    "",
                    "",
                )
                await link.send("\r\n".join(lines).encode())
                line = b""
                while b"\r\n" not in line and len(line) < 256:  # noqa: PLR2004  a status line is shorter
                    received = await link.receive()
                    if not received:
                        break
                    line += received
            finally:
                link.abort()
    except TimeoutError:
        return f"no answer within {_PROBE_SECONDS:g} s"
    except OSError as error:
        return error.strerror or type(error).__name__
    status = _STATUS_LINE.match(line)
    return status[1].decode() if status else "not HTTP"
