"""Budgets of tenants, with the headers that say what is left (draft-ietf-httpapi-ratelimit-headers)."""

from __future__ import annotations

import math
from typing import Final

from starlette.requests import Request

from gateway.keyfile import Caller
from gateway.problems import Refusal
from queuecore.bucket import Buckets, Spent

MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
FAILURES_PER_MINUTE: Final = 60


class Budgets:
    """Spends them; every gateway asks the same server."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    async def request(self, request: Request, caller: Caller) -> None:
        """One request.

        Raises:
            Refusal: 429, the tenant had its requests.
        """
        most = caller.limits.requests_per_minute
        if most is not None:
            spent = await self._buckets.spend(f"{caller.tenant}:requests", 1, capacity=most, window_ms=MINUTE_MS)
            self._say(request, "requests", most, MINUTE_MS, spent)
            if not spent.allowed:
                raise _refusal("too_many_requests", f"this tenant has {most} requests a minute", spent)

    async def before_upload(self, caller: Caller) -> None:
        """Whether anything is left to upload.

        Raises:
            Refusal: 429, the tenant had its bytes.
        """
        most = caller.limits.upload_bytes_per_day
        if most is not None:
            spent = await self._buckets.spend(f"{caller.tenant}:bytes", 0, capacity=most, window_ms=DAY_MS)
            if not spent.allowed:
                raise _refusal("too_many_bytes", f"this tenant has {most} bytes of uploads a day", spent)

    async def uploaded(self, caller: Caller, size: int) -> None:
        """What was uploaded is spent, even where it was more than was left: its size was not known before."""
        most = caller.limits.upload_bytes_per_day
        if most is not None:
            _ = await self._buckets.spend(f"{caller.tenant}:bytes", size, capacity=most, window_ms=DAY_MS, owed=True)

    async def failed_key(self, address: str) -> None:
        """Somebody at this address gave no key or a wrong one.

        Raises:
            Refusal: 429, too often.
        """
        spent = await self._buckets.spend(
            f"address:{address}:failures", 1, capacity=FAILURES_PER_MINUTE, window_ms=MINUTE_MS
        )
        if not spent.allowed:
            raise _refusal("too_many_failures", "too many requests without a valid key from this address", spent)

    def _say(self, request: Request, name: str, most: int, window_ms: int, spent: Spent) -> None:
        wait = math.ceil(spent.retry_ms / 1000) if not spent.allowed else math.ceil(window_ms / 1000)
        request.scope["relayq.headers"] = [
            (b"ratelimit-policy", f'"{name}";q={most};w={window_ms // 1000}'.encode()),
            (b"ratelimit", f'"{name}";r={spent.remaining};t={wait}'.encode()),
        ]


def _refusal(code: str, detail: str, spent: Spent) -> Refusal:
    return Refusal(429, code, detail, headers={"retry-after": str(max(1, math.ceil(spent.retry_ms / 1000)))})
