"""A thousand fast jobs, each waited for by long poll, while no published message reaches the gateway (case K2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import httpx
import pytest

from queuecore.broker import Result, Worker
from queuecore.clock import monotonic
from queuecore.names import new_claim_id
from queuecore.testing.proxy import SwallowingProxy
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]

JOBS: Final = 1000
CLIENTS: Final = 100
LONGEST_SECONDS: Final = 5.0  # between two looks of a gateway that hears nothing
SLACK_SECONDS: Final = 20.0  # a machine that runs other things; without its looks the gateway would answer after 30


class Worked:
    """Completes every job at once, in this process; notes when."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self.done_at: dict[str, float] = {}

    async def run(self, name: str) -> None:
        broker = self._yard.queue.broker(self._yard.model, self._yard.config)  # one claim at a time per instance
        while len(self.done_at) < JOBS:
            claim = await broker.claim(Worker(name), new_claim_id(), wait_seconds=0.5)
            if claim is not None:
                self.done_at[claim.job_id] = monotonic()
                _ = await broker.complete(claim, Result("nowhere", 1, "text/plain", "00"))


@pytest.mark.timeout(300)
@requirement("notice:get:completion-seen-without-signal")
async def test_a_thousand_waits_end_in_time_although_every_signal_is_lost(
    yard: Yard, valkey: ValkeyProcess, tell: Callable[[str], None]
) -> None:
    waits: list[float] = []
    left = iter(range(JOBS))
    async with SwallowingProxy(valkey.port) as proxy:
        proxy.mute()
        gateway = await yard.gateway(REDIS_URL=f"redis://127.0.0.1:{proxy.port}/0")
        worked = Worked(yard)
        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60, limits=limits) as http:

            async def client() -> None:
                for _ in left:
                    answer = await http.post("/jobs/echo", content=b"x")
                    assert answer.status_code == 202, answer.text
                    job_id, etag = answer.json()["job_id"], answer.headers["etag"]
                    while answer.json()["status"] != "completed":
                        answer = await http.get(f"/jobs/echo/{job_id}?wait=30", headers={"if-none-match": etag})
                        assert answer.status_code == 200, "its bound is far below 30 s"
                        etag = answer.headers["etag"]
                    waits.append(monotonic() - worked.done_at[job_id])

            async with asyncio.TaskGroup() as group:
                for number in range(4):
                    _ = group.create_task(worked.run(f"worker-{number}"))
                for _ in range(CLIENTS):
                    _ = group.create_task(client())
        dropped = proxy.dropped
    assert len(waits) == JOBS
    assert dropped > JOBS / 10, "messages come in bundles, but they come"
    slowest = sorted(waits)
    tell(f"seen without a signal: median {slowest[JOBS // 2]:.2f} s, slowest {slowest[-1]:.2f} s after the verdict")
    assert slowest[-1] < LONGEST_SECONDS + SLACK_SECONDS
    assert sum(wait > 0.3 for wait in waits) > JOBS / 10, "they were told all the same"
