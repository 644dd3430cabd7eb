"""One attempt: resolve, judge, dial the judged address, send, read the status.

The name is resolved here, once, and the connection goes to an address of that answer while TLS and the Host header keep
the name, so a resolver that says something else a moment later changes nothing (rebinding). Nothing follows a redirect.
Everything together has ``DEADLINE_SECONDS``; of the answer at most ``ANSWER_BYTES`` are read, and never inflated.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeAlias

import httpx

from gateway.webhooks.guard import Allow, Refused, Target, check, judge
from queuecore import clock
from queuecore.retry import retry_after_seconds

DEADLINE_SECONDS: Final = 15.0
ANSWER_BYTES: Final = 1_024
RESOLVERS: Final = 64

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]


class Answer(NamedTuple):
    """What came of it. ``refused``: the address is not allowed, nothing was dialled."""

    status: int | None = None
    error: str = ""
    refused: bool = False
    retry_after_seconds: float | None = None
    address: str = ""
    seconds: float = 0.0
    excerpt: str = ""


class Deliverer:
    """Makes attempts. One for the process: it holds the resolvers' threads and the trust store."""

    def __init__(self, allow: Allow, resolve: Resolve | None = None, verify: ssl.SSLContext | None = None) -> None:
        self._allow = allow
        # Threads of its own: a resolver that hangs must not take those that others wait for.
        self._threads = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="resolve")
        self._resolve = resolve or self._ask
        self._client = httpx.AsyncClient(
            verify=verify or httpx.create_ssl_context(),
            trust_env=False,  # no proxy: it would dial for us
            follow_redirects=False,
            timeout=None,  # noqa: S113  the deadline below covers everything
            # A connection belongs to one judged address and one name: none is used again.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def deliver(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Make one attempt; never raises for what the other side does."""
        begun = clock.monotonic()
        address = ""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                target = check(url, self._allow)
                if target.literal is not None:
                    addresses = judge(target, [str(target.literal)], self._allow)
                else:
                    addresses = judge(target, await self._resolve(target.host, target.port), self._allow)
                answer = Answer(error="no address answered")
                for address in addresses:
                    try:
                        answer = await self._send(target, url, address, body, headers)
                        break
                    except (httpx.ConnectError, OSError) as error:
                        answer = Answer(error=_say(error))
        except Refused as error:
            answer = Answer(error=str(error), refused=True)
        except TimeoutError:
            answer = Answer(error=f"no answer within {DEADLINE_SECONDS:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            answer = Answer(error=_say(error))
        return answer._replace(address=address, seconds=round(clock.monotonic() - begun, 3))

    async def aclose(self) -> None:
        """Close; attempts under way are broken off."""
        await self._client.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _send(self, target: Target, url: str, address: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        host = f"[{target.host}]" if ":" in target.host else target.host
        default = target.port == {"http": 80, "https": 443}[target.scheme]
        request = self._client.build_request(
            "POST",
            httpx.URL(url).copy_with(host=address),
            content=body,
            headers={
                "host": host if default else f"{host}:{target.port}",
                "content-type": "application/json",
                "accept-encoding": "identity",
                "user-agent": "relayq-webhooks",
                **headers,
            },
            extensions={"sni_hostname": target.host},
        )
        response = await self._client.send(request, stream=True)
        try:
            retry = retry_after_seconds(response.headers.get("retry-after"), response.headers.get("date"))
            answer = Answer(response.status_code, retry_after_seconds=retry)
            if response.is_success:
                return answer
            text = await _excerpt(response)
            return answer._replace(error=f"HTTP {response.status_code}", excerpt=text)
        finally:
            await response.aclose()

    async def _ask(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()

        def ask() -> Sequence[str]:
            return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

        return await loop.run_in_executor(self._threads, ask)


async def _excerpt(response: httpx.Response) -> str:
    """The beginning of the answer as it came over the wire, made harmless."""
    content = b""
    try:
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) >= ANSWER_BYTES:
                break
    except httpx.HTTPError:
        pass  # the status came whole; of the rest only what is there
    text = content[:ANSWER_BYTES].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")[:300]
