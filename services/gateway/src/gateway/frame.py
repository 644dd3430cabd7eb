"""Around every request: what is measured, and what becomes of a connection whose request was not read to its end.

A client that is told 413 while it still sends must be able to read that: the answer goes out at once, with
``Connection: close``, then what still comes is thrown away for a moment, then the connection closes. Without the
moment the kernel answers the rest with a reset, and many clients never see the answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.problems import CONTENT_TYPE, document
from queuecore.clock import monotonic
from queuecore.telemetry import metrics

LINGER_SECONDS: Final = 2.0
LINGER_IDLE_SECONDS: Final = 0.3
LINGER_BYTES: Final = 4_194_304

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram
    from starlette.routing import Route

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Frame:
    """ASGI middleware; the outermost."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = monotonic()
        exchange = _Exchange(scope, receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            # The process stops and this request had its time.
            await exchange.give_up()
            raise
        finally:
            matched: Route | None = scope.get("route")
            route = matched.path if matched else "none"  # the template; a path that was asked for is never a label
            method = scope["method"] if scope["method"] in _METHODS else "other"
            count, seconds = self._series(method, route, exchange.status)
            count.inc()
            seconds.observe(monotonic() - begun)

    def _series(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        """The two metrics of such a request, looked up once."""
        key = method, route, status
        if key not in self._known:
            self._known[key] = (
                metrics.HTTP_REQUESTS.labels(method, route, str(status)),
                metrics.HTTP_REQUEST_SECONDS.labels(method, route),
            )
        return self._known[key]


class _Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._asked = False
        self._expects = False
        self._unread = scope["method"] not in _WITHOUT_BODY and self._announces_body(scope)
        self._lingers = False
        self._gone = False
        self.status = 0

    def _announces_body(self, scope: Scope) -> bool:
        announced = False
        for name, value in scope["headers"]:
            if name == b"content-length":
                announced = announced or value != b"0"
            elif name == b"transfer-encoding":
                announced = True
            elif name == b"expect":
                self._expects = True
        return announced

    async def receive(self) -> Message:
        self._asked = True
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone = True
            self._unread = False
        elif not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if said := self._scope.get("relayq.headers"):
                message = {**message, "headers": [*message["headers"], *said]}
            if self._unread:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
                # A client that waits for 100 Continue sends nothing that could be thrown away.
                self._lingers = self._asked or not self._expects
        elif self._lingers and not message.get("more_body", False):
            self._lingers = False
            await self._send({**message, "more_body": True})
            await self._throw_away()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _throw_away(self) -> None:
        thrown = 0
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while self._unread and thrown < LINGER_BYTES:
                    async with asyncio.timeout(LINGER_IDLE_SECONDS):
                        thrown += len((await self.receive()).get("body", b""))
        except TimeoutError:
            return

    async def give_up(self) -> None:
        """Answer 503 if nothing was answered yet."""
        if self.status or self._gone:
            return
        body = document(503, "shutting_down", "the gateway stops; send the request again")
        headers = [
            (b"content-type", CONTENT_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"retry-after", b"1"),
            (b"connection", b"close"),
        ]
        self.status = 503
        await self._send({"type": "http.response.start", "status": 503, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
