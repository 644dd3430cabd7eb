"""Answers that are used again: the results of a model's jobs, and the bodies of heavy reads (ADR 0009).

A kept result is a pointer to the job that has it, moved by the scripts of the queue. A kept body is a string on
``CACHE_REDIS_URL``; that one is away, slow or full without anybody but the queue's own counts being the poorer for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.handlers.answers import json_answer
from gateway.idempotency import canonical_params
from gateway.uploads import Accepted
from queuecore.broker import Reuse
from queuecore.config import ModelConfig, Operation
from queuecore.errors import BrokerError
from queuecore.response_cache import ResponseCache, cache_key, endpoint_prefix
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

CACHE_SECONDS: Final = 0.5  # a cache that takes longer is no faster than what it stands for


def directives(request: Request) -> frozenset[str]:
    """The words of ``Cache-Control``, in lower case."""
    words = ",".join(request.headers.getlist("cache-control")).split(",")
    return frozenset(word.strip().lower() for word in words)


def reuse_of(accepted: Accepted, tenant: str, asked: frozenset[str]) -> Reuse | None:
    """The place of this submission's result among those kept; None when it may neither use one nor leave one.

    Of one tenant alone, and only where nothing but the result counts: who asks for a webhook, a time, a turn or an
    item of its own gets a job of its own.
    """
    one = accepted.submission
    if not keeps_results(one.config) or "no-store" in asked:
        return None
    if one.pipeline or one.callback_url or one.ordering_key or one.dedup:
        return None
    if one.not_before is not None or one.deadline is not None:
        return None
    params = [tenant, accepted.sha256, accepted.filename, accepted.content_type, canonical_params(one.params)]
    key = cache_key(results_endpoint(one.model, one.operation_name, one.operation), params)
    return Reuse(key, 1000 * one.config.cache_seconds, fresh=bool(asked & {"no-cache", "max-age=0"}))


def keeps_results(config: ModelConfig) -> bool:
    """Whether jobs of this model may be answered with results of earlier ones."""
    return config.cache_seconds > 0


def results_endpoint(model: str, operation_name: str, operation: Operation) -> list[str]:
    """What the results of one operation are kept under; another URL in models.yaml is another endpoint."""
    return ["result", model, operation_name, operation.request, operation.url]


class Reads:
    """Bodies of reads that cost a look at every queue. ``keep_seconds`` 0 switches this off."""

    def __init__(self, cache: ResponseCache, keep_seconds: float) -> None:
        self._cache = cache
        self._keep_ms = int(1000 * keep_seconds)
        self._making: dict[str, asyncio.Future[str]] = {}

    async def answer(self, request: Request, endpoint: str, make: Callable[[], Awaitable[object]]) -> Response:
        """The kept answer, or a new one; simultaneous misses of this gateway make it once."""
        if not self._keep_ms:
            return json_answer(200, await make())
        key = cache_key(["read", endpoint], [])
        body = None if directives(request) & {"no-cache", "no-store", "max-age=0"} else await self._kept(key)
        hit = body is not None
        metrics.CACHE_REQUESTS.labels(endpoint, "hit" if hit else "miss").inc()
        if body is None:
            body = await self._made(key, make)
        headers = {"cache-control": "no-store", "x-cache": "hit" if hit else "miss"}
        return Response(body, 200, headers, "application/json")

    async def forget(self, *endpoints: str) -> None:
        """What these endpoints show has changed by somebody's hand."""
        if not self._keep_ms:
            return
        for endpoint in endpoints:
            try:
                async with asyncio.timeout(CACHE_SECONDS):
                    await self._cache.drop(cache_key(["read", endpoint], []))
            except (BrokerError, TimeoutError) as error:
                _away(error)

    async def _kept(self, key: str) -> str | None:
        try:
            async with asyncio.timeout(CACHE_SECONDS):
                return await self._cache.get(key)
        except (BrokerError, TimeoutError) as error:
            _away(error)
            return None

    async def _made(self, key: str, make: Callable[[], Awaitable[object]]) -> str:
        if key in self._making:
            return await asyncio.shield(self._making[key])
        made = self._making[key] = asyncio.ensure_future(self._make(key, make))
        made.add_done_callback(lambda _: self._making.pop(key, None))
        return await asyncio.shield(made)

    async def _make(self, key: str, make: Callable[[], Awaitable[object]]) -> str:
        body = msgspec.json.encode(await make()).decode()
        try:
            async with asyncio.timeout(CACHE_SECONDS):
                await self._cache.put(key, body, keep_ms=self._keep_ms)
        except (BrokerError, TimeoutError) as error:
            _away(error)
        return body


def prefixes_of(name: str, config: ModelConfig) -> list[str]:
    """What the keys of a model's kept results begin with."""
    return [endpoint_prefix(results_endpoint(name, one, config.operation(one))) for one in config.operations]


def _away(error: Exception) -> None:
    _log.info("the response cache did not answer: %s", error, extra={"event": Event.CONNECTION_LOST})
