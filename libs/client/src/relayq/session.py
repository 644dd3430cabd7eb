"""Drives flows (``relayq.exchange``) over HTTP: one session blocks, the other awaits. Nothing else differs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import aclosing, closing
from typing import Final, TypeVar
from urllib.parse import urlsplit

import anyio
import httpx

from relayq.errors import NotReachable, OutcomeUnknown, RelayqError, SourceChanged
from relayq.events import Event, EventFeed
from relayq.exchange import Exchange, Flow, Pause, Reply, Step

T = TypeVar("T")
CONNECT_SECONDS: Final = 5.0
TAKEN: Final = frozenset({200, 206})
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
# Shorter than a server's keep-alive: a POST must not meet a connection that is just being closed.
LIMITS: Final = httpx.Limits(keepalive_expiry=2)


def check_url(url: str) -> str:
    """The URL without a trailing slash.

    Raises:
        ValueError: it is not http:// or https:// with a host.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{url!r} is not a URL such as http://127.0.0.1:8080")
    return url.rstrip("/")


class Session:
    """Blocking."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_seconds: float,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = check_url(url)
        self._timeout_seconds = timeout_seconds
        self._http = httpx.Client(
            base_url=self.url, headers=headers, limits=LIMITS, transport=transport, trust_env=_proxied(self.url)
        )

    def run(self, flow: Flow[T]) -> T:
        """The flow's result."""
        outcome: Reply | RelayqError | None = None
        with closing(flow):
            while True:
                try:
                    step = flow.throw(outcome) if isinstance(outcome, RelayqError) else flow.send(outcome)
                except StopIteration as end:
                    return end.value
                outcome = self._carry_out(step)

    def events(self, feed: EventFeed) -> Generator[Event, None, None]:
        """The feed's events, across broken connections, until it is done.

        Raises:
            Refused, UnexpectedAnswer, NotReachable, OutcomeUnknown: as for any other call.
        """
        while True:
            trouble: RelayqError | None = None
            step = feed.exchange()
            try:
                for chunk in self._chunks(step, feed):
                    yield from feed.take(chunk)
            except httpx.TransportError as error:
                trouble = _translated(error, self.url, step)
            if feed.done:
                return
            time.sleep(feed.pause_seconds(trouble))

    def _chunks(self, step: Exchange, feed: EventFeed) -> Generator[bytes, None, None]:
        request = self._http.build_request(
            step.method, step.path, headers=step.headers, timeout=_timeout(step, self._timeout_seconds)
        )
        with closing(self._http.send(request, stream=True)) as response:
            body = b"" if response.status_code in TAKEN else response.read()
            feed.begin(Reply(response.status_code, _lowered(response.headers), body))
            if response.status_code in TAKEN:
                yield from response.iter_bytes()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _carry_out(self, step: Step) -> Reply | RelayqError | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            if step.body is None:
                return self._exchange(step, None)
            with closing(step.body.stream()) as content:
                return self._exchange(step, content)
        except httpx.TransportError as error:
            return _translated(error, self.url, step)

    def _exchange(self, step: Exchange, content: Iterator[bytes] | None) -> Reply:
        request = self._http.build_request(
            step.method,
            step.path,
            params=step.query,
            headers=_headers(step),
            content=content,
            timeout=_timeout(step, self._timeout_seconds),
        )
        with closing(self._http.send(request, stream=True)) as response:
            if step.download is None or response.status_code not in TAKEN:
                return Reply(response.status_code, _lowered(response.headers), response.read())
            headers = _lowered(response.headers)
            step.download.begin(response.status_code, headers)
            for chunk in response.iter_bytes():
                step.download.write(chunk)
            return Reply(response.status_code, headers, b"")


class AsyncSession:
    """On an event loop of asyncio or trio."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_seconds: float,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = check_url(url)
        self._timeout_seconds = timeout_seconds
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=headers, limits=LIMITS, transport=transport, trust_env=_proxied(self.url)
        )

    async def run(self, flow: Flow[T]) -> T:
        """The flow's result."""
        outcome: Reply | RelayqError | None = None
        with closing(flow):
            while True:
                try:  # here and not in a method: a coroutine must not let StopIteration out
                    step = flow.throw(outcome) if isinstance(outcome, RelayqError) else flow.send(outcome)
                except StopIteration as end:
                    return end.value
                outcome = await self._carry_out(step)

    async def events(self, feed: EventFeed) -> AsyncGenerator[Event, None]:
        """See ``Session.events``."""
        while True:
            trouble: RelayqError | None = None
            step = feed.exchange()
            try:
                async with aclosing(self._chunks(step, feed)) as chunks:
                    async for chunk in chunks:
                        for event in feed.take(chunk):
                            yield event
            except httpx.TransportError as error:
                trouble = _translated(error, self.url, step)
            if feed.done:
                return
            await anyio.sleep(feed.pause_seconds(trouble))

    async def _chunks(self, step: Exchange, feed: EventFeed) -> AsyncGenerator[bytes, None]:
        request = self._http.build_request(
            step.method, step.path, headers=step.headers, timeout=_timeout(step, self._timeout_seconds)
        )
        async with aclosing(await self._http.send(request, stream=True)) as response:
            body = b"" if response.status_code in TAKEN else await response.aread()
            feed.begin(Reply(response.status_code, _lowered(response.headers), body))
            if response.status_code in TAKEN:
                async for chunk in response.aiter_bytes():
                    yield chunk

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _carry_out(self, step: Step) -> Reply | RelayqError | None:
        if isinstance(step, Pause):
            await anyio.sleep(step.seconds)
            return None
        try:
            if step.body is None:
                return await self._exchange(step, None)
            async with aclosing(step.body.async_stream()) as content:
                return await self._exchange(step, content)
        except httpx.TransportError as error:
            return _translated(error, self.url, step)

    async def _exchange(self, step: Exchange, content: AsyncIterator[bytes] | None) -> Reply:
        request = self._http.build_request(
            step.method,
            step.path,
            params=step.query,
            headers=_headers(step),
            content=content,
            timeout=_timeout(step, self._timeout_seconds),
        )
        async with aclosing(await self._http.send(request, stream=True)) as response:
            if step.download is None or response.status_code not in TAKEN:
                return Reply(response.status_code, _lowered(response.headers), await response.aread())
            headers = _lowered(response.headers)
            step.download.begin(response.status_code, headers)
            async for chunk in response.aiter_bytes():
                await anyio.to_thread.run_sync(step.download.write, chunk)
            return Reply(response.status_code, headers, b"")


def _headers(step: Exchange) -> dict[str, str]:
    headers = dict(step.headers)
    if step.body is not None:
        headers["content-type"] = step.body.content_type
        if step.body.length is not None:
            headers["content-length"] = str(step.body.length)
    if step.download is not None:
        headers |= step.download.request_headers()
        headers["accept-encoding"] = "identity"  # offsets and digests are of the bytes as they are stored
    return headers


def _timeout(step: Exchange, seconds: float) -> httpx.Timeout:
    return httpx.Timeout(seconds, connect=CONNECT_SECONDS, read=seconds + step.hold_seconds)


def _lowered(headers: httpx.Headers) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _proxied(url: str) -> bool:
    """Whether HTTP_PROXY and its kind may apply; a proxy's loopback is not ours."""
    return urlsplit(url).hostname not in LOOPBACK


def _translated(error: httpx.TransportError, url: str, step: Exchange) -> RelayqError:
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        found: RelayqError = NotReachable(url, reason)
    elif isinstance(error, httpx.LocalProtocolError) and step.body is not None:
        found = SourceChanged(f"the file changed while it was sent ({reason}); nothing was submitted")
    else:
        found = OutcomeUnknown(f"{step.method} {url}{step.path}: the connection broke ({reason}); no answer came")
    found.__cause__ = error
    return found
