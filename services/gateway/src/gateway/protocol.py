"""What uvicorn's HTTP/1.1 leaves open: how long and how large a request's head may be, and how bad HTTP is answered."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.problems import CONTENT_TYPE, document

HEAD_BYTES: Final = 65_536
HEAD_SECONDS: Final = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """A head has ``HEAD_SECONDS`` and ``HEAD_BYTES``; a client that is slower or larger is cut off."""

    _head_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first head is awaited from here on."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is awaited any more."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head before it is parsed."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # A head and a body that came together were counted together; only an unfinished head is too large.
        if self._in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, "head_too_large", f"the request's head may have {HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = True
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        self._head_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP/1.1 with a problem document, as everything else."""
        self._refuse(400, "invalid_http", msg)

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            if self._head_bytes:
                self._refuse(408, "head_timeout", f"the request's head was not whole within {HEAD_SECONDS:g} s")
            else:
                self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, code: str, detail: str) -> None:
        body = document(status, code, detail)
        head = f"HTTP/1.1 {status} \r\ncontent-type: {CONTENT_TYPE}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()


def options() -> dict[str, Any]:
    """What every listener of ours has in common, for ``uvicorn.Config``."""
    return {
        "http": BoundedProtocol,
        "ws": "none",
        "lifespan": "off",
        "loop": "none",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_keep_alive": 15,
        "backlog": 2048,
        "proxy_headers": False,  # nobody's X-Forwarded-For is believed
    }
