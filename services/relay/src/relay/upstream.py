"""One HTTP exchange with the inference server, both directions at once.

On h11 and a socket, not on an HTTP client library. Two reasons: a model may answer while it still reads (a client that
sends everything first would deadlock with one that streams, and lose the answer of one that refuses early), and the
import is 12 ms instead of 190. One request a connection: nothing is pooled, re-sent or redirected, and no timeout
applies but the caller's; a POST that may have reached the model is never repeated here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

import h11

from queuecore.clock import monotonic, sleep
from queuecore.retry import Backoff, retry_after_seconds
from relay.failure import RunFailed
from relay.header import media_type, printable
from relay.link import Address, Link, connect
from relay.request import Request

CONNECT_SECONDS: Final = 5.0
_CONNECT_BACKOFF: Final = Backoff(0.1, 1)
_EXCERPT_BYTES: Final = 2_048
_EXCERPT_CHARACTERS: Final = 500
_EXCERPT_SECONDS: Final = 5.0
_OVERLOADED: Final = frozenset({502, 503, 504})  # the server, not the job
_RETRYABLE: Final = frozenset({408, 429})  # beside every 5xx


class Exchange:
    """``async with Exchange(address, request) as exchange:`` sends; ``content_type`` and ``chunks()`` are the answer.

    Raises on entering:
        RunFailed: no connection, no answer, a cut one, or a status other than 2xx.
    """

    def __init__(self, address: Address, request: Request) -> None:
        self._address = address
        self._request = request
        self._http = h11.Connection(h11.CLIENT)
        self._link: Link | None = None
        self._upload: asyncio.Task[None] | None = None
        self._input_fault: Exception | None = None
        self.status = 0
        self.content_type = ""

    async def __aenter__(self) -> Self:
        self._link = await _connected(self._address)
        try:
            self._upload = asyncio.create_task(self._send(self._link))
            await self._read_head()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def abort(self) -> None:
        """Close the connection now, without waiting for anything; the exchange then fails."""
        if self._link:
            self._link.abort()

    async def aclose(self) -> None:
        """Close the connection and end the upload."""
        self.abort()
        if self._upload:
            _ = self._upload.cancel()
            _ = await asyncio.wait({self._upload})

    async def chunks(self) -> AsyncIterator[bytes]:
        """The answer's body.

        Raises:
            RunFailed: it was cut.
            BlobError, RunFailed: the request's body failed meanwhile.
        """
        while True:
            event = await self._event()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
        if self._input_fault:
            raise self._input_fault

    async def _send(self, link: Link) -> None:
        request = self._request
        framing = (
            ("Transfer-Encoding", "chunked") if request.length is None else ("Content-Length", str(request.length))
        )
        headers = [
            ("Host", self._address.authority), ("User-Agent", "relayq-relay"), ("Accept", "*/*"),
            ("Accept-Encoding", "identity"), ("Connection", "close"), framing, *request.headers,
        ]  # fmt: skip
        try:
            head = h11.Request(method="POST", target=f"{self._address.path}{request.path}", headers=headers)
            reads = await self._sent(link, head)
            async for chunk in request.body:
                if not reads:
                    return
                reads = not chunk or await self._sent(link, h11.Data(chunk))
            _ = reads and await self._sent(link, h11.EndOfMessage())
        except Exception as error:  # noqa: BLE001  whatever the input's stream raised is the exchange's outcome
            self._input_fault = error
            link.abort()

    async def _sent(self, link: Link, event: h11.Request | h11.Data | h11.EndOfMessage) -> bool:
        """False when the model reads no more; whether it has answered, the reading side sees."""
        try:
            await link.send(self._http.send(event) or b"")
        except OSError:
            return False
        return True

    async def _read_head(self) -> None:
        event = await self._event()
        while not isinstance(event, h11.Response):
            event = await self._event()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(list(event.headers))}
        self.status = event.status_code
        if not 200 <= event.status_code < 300:  # noqa: PLR2004  2xx
            raise await self._refused(event.status_code, headers)
        encoding = headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise RunFailed(
                "inference_error",
                f"the model answered in content-encoding {printable(encoding.encode(), 40)!r}, which was not asked for",
                http_status=event.status_code,
            )
        self.content_type = media_type(headers.get("content-type", ""))

    async def _event(self) -> object:
        """The next event of the answer."""
        link = self._link
        assert link is not None  # noqa: S101  entered
        while True:
            try:
                event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return event
                self._http.receive_data(await link.receive())
            except TimeoutError as error:
                raise self._input_fault or RunFailed(
                    "inference_timeout", "the inference server vanished: its connection timed out", retryable=True
                ) from error
            except (OSError, h11.RemoteProtocolError) as error:
                raise self._input_fault or RunFailed(
                    "inference_error",
                    "the model closed the connection within its answer"
                    if self.status
                    else "the model closed the connection, or did not speak HTTP, before it answered",
                    http_status=self.status or None,
                    retryable=True,
                ) from error

    async def _refused(self, status: int, headers: dict[str, str]) -> RunFailed:
        content = b""
        with contextlib.suppress(RunFailed, TimeoutError):
            async with asyncio.timeout(_EXCERPT_SECONDS):
                async for chunk in self.chunks():
                    content += chunk[:_EXCERPT_BYTES]
                    if len(content) >= _EXCERPT_BYTES:
                        break
        excerpt = printable(content[:_EXCERPT_BYTES], _EXCERPT_CHARACTERS)
        return RunFailed(
            "inference_error",
            f"the model answered {status}{': ' if excerpt else ''}{excerpt}",
            http_status=status,
            retryable=status in _RETRYABLE or status >= 500,  # noqa: PLR2004  5xx
            infrastructure=status in _OVERLOADED,
            retry_after_seconds=retry_after_seconds(headers.get("retry-after"), headers.get("date")),
        )


async def _connected(address: Address) -> Link:
    """A fresh connection. If refused it is tried again for a moment: nothing was sent, the model may be restarting."""
    failures = 0
    started = monotonic()
    while True:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await connect(address)
        except OSError as error:
            failures += 1
            pause = _CONNECT_BACKOFF.pause_seconds(failures)
            if monotonic() - started + pause >= CONNECT_SECONDS:
                raise RunFailed(
                    "inference_unavailable",
                    f"no connection to the inference server: {error.strerror or type(error).__name__}",
                    retryable=True,
                    infrastructure=True,
                ) from error
            await sleep(pause)
