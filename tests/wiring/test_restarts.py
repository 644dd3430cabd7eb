"""Redis restarted ten times under load: every process goes on, or ends with an error and is started anew."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from queuecore.job import Status
from queuecore.testing.clock import eventually
from queuecore.testing.fleet import Fleet
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess, free_port
from queuecore.testing.yard import Mock, Served, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]

RESTARTS: Final = 10
CLIENTS: Final = 6
LEASE_SECONDS: Final = 2  # nothing is reaped for one lease after each restart


@pytest.fixture
async def short(lasting: ValkeyProcess, mock: Mock, tmp_path: Path) -> AsyncIterator[Yard]:
    made = Yard(lasting, mock, tmp_path, lease_seconds=LEASE_SECONDS)
    yield made
    await made.aclose()


class Load:
    """Clients that submit a job, wait for its verdict by long poll, and begin again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.accepted: dict[str, bytes] = {}
        self.over: set[str] = set()  # as clients saw it
        self.refused = 0
        self.up = asyncio.Event()  # Redis runs
        self.enough = asyncio.Event()

    async def run(self, name: int) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as http:
            number = 0
            while not self.enough.is_set():
                number += 1
                content = f"client {name} job {number}".encode()
                answer = await self._asked(lambda content=content: http.post("/jobs/echo", content=content))
                if answer is None:
                    continue
                assert answer.status_code == 202, answer.text
                job_id = answer.json()["job_id"]
                self.accepted[job_id] = content
                await self._until_over(http, job_id)

    async def submission_is_refused(self) -> bool:
        """While Redis is away: 503 and when to come back. False: it is just being started anew."""
        try:
            async with httpx.AsyncClient(base_url=self._url, timeout=60) as http:
                answer = await http.post("/jobs/echo", content=b"nobody will ever see this")
        except httpx.TransportError:
            return False
        assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (503, True), answer.text
        return True

    async def _until_over(self, http: httpx.AsyncClient, job_id: str) -> None:
        etag = '""'
        while True:
            seen = etag  # at first an ETag of nothing
            answer = await self._asked(
                lambda seen=seen: http.get(f"/jobs/echo/{job_id}?wait=20", headers={"if-none-match": seen})
            )
            if answer is None or answer.status_code == 304:
                continue
            assert answer.status_code == 200, answer.text  # accepted is accepted: never 404
            etag = answer.headers["etag"]
            if answer.json()["finished_at"]:
                self.over.add(job_id)
                return

    async def _asked(self, ask: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response | None:
        """The answer; None after a 503, which says when to come back, or while the gateway is started anew."""
        try:
            answer = await ask()
        except httpx.TransportError:
            answer = None
        else:
            if answer.status_code != 503:
                return answer
            assert int(answer.headers["retry-after"]) > 0
            assert answer.headers["content-type"] == "application/problem+json"
            self.refused += 1
        try:
            async with asyncio.timeout(2):
                _ = await self.up.wait()
        except TimeoutError:
            pass
        return None


@asynccontextmanager
async def supervised(start: Callable[[], Awaitable[Served]], codes: Counter[int]) -> AsyncGenerator[Served]:
    """A process that is started anew whenever it ends; the first of them."""

    async def watch(process: Served) -> None:
        while True:
            codes[await process.ended(600)] += 1
            process = await start()

    first = await start()
    watching = asyncio.create_task(watch(first))
    try:
        yield first
    finally:
        _ = watching.cancel()
        _ = await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.timeout(400)
@requirement("restart:submit:loops-resume", "server:kill:nothing-lost-with-always")
async def test_redis_restarted_ten_times_under_load_loses_nothing_that_was_accepted(
    short: Yard, lasting: ValkeyProcess, tell: Callable[[str], None]
) -> None:
    metrics_port, port = free_port(), free_port()
    gateway_codes: Counter[int] = Counter()
    reaper_codes: Counter[int] = Counter()

    async def start_gateway() -> Served:
        return await short.gateway(GATEWAY_PORT=str(port), GATEWAY_METRICS_PORT=str(metrics_port))

    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(supervised(start_gateway, gateway_codes))
        reaper = await stack.enter_async_context(supervised(short.ready_reaper, reaper_codes))
        fleet = await stack.enter_async_context(
            Fleet(short, 3, RELAY_MAX_JOBS="0", RELAY_QUEUE_POP_TIMEOUT_SECONDS="120")
        )
        load = Load(gateway.url)
        load.up.set()
        clients = [asyncio.create_task(load.run(number)) for number in range(CLIENTS)]
        for number in range(RESTARTS):
            before = len(load.over)
            _ = await eventually(
                lambda before=before: len(load.over) >= before + 10 or any(client.done() for client in clients),
                within=60,
            )
            load.up.clear()
            if number % 2:
                lasting.kill()
            else:
                lasting.stop()
            _ = await eventually(load.submission_is_refused, within=60)
            _ = lasting.start()
            load.up.set()
        before = len(load.over)
        _ = await eventually(lambda: len(load.over) >= before + 10, within=60)
        load.enough.set()
        _ = await asyncio.wait_for(asyncio.gather(*clients), 60)
        await every_loop_goes_round(short, reaper, metrics_port)

        async def nothing_left() -> bool:
            # Also of jobs whose submission was answered by "not known": a pop without a claim waits for the reaper.
            return await short.operator.residue() == []

        _ = await eventually(nothing_left, within=60)
    assert load.over == load.accepted.keys()
    records = await short.queue.server.records(list(load.accepted))
    for job_id, record in records.items():
        assert record is not None, job_id
        assert record.status == Status.COMPLETED, record
        await short.check_result(record, load.accepted[job_id])
    assert fleet.codes.keys() <= {0, 1, 3}, fleet.codes
    assert 0 not in gateway_codes + reaper_codes, "a process that ends on its own says that it failed"
    tell(
        f"{len(load.accepted)} jobs through {RESTARTS} restarts of Redis, {load.refused} answers of 503; "
        f"exit codes: relays {dict(fleet.codes)}, gateway {dict(gateway_codes)}, reaper {dict(reaper_codes)}"
    )


async def every_loop_goes_round(yard: Yard, reaper: Served, metrics_port: int) -> None:
    """Gateway and reaper at work: subscribed, verdicts taken, every task fresh, every pass good."""
    outbox = f"relay:{yard.model}:outbox"

    async def taken() -> bool:
        # What was given to the gateway in a reply that was lost comes again after a minute; the rest is gone.
        given = await yard.link.call("XPENDING", outbox, "gateway")
        return await yard.link.call("XLEN", outbox) == given[0] < CLIENTS * RESTARTS

    _ = await eventually(taken, within=20)
    assert await yard.link.call("PUBSUB", "NUMPAT") == 2
    _ = await reaper.ready()
    async with httpx.AsyncClient(timeout=10) as http:

        async def ages() -> list[float]:
            text = (await http.get(f"http://127.0.0.1:{metrics_port}/metrics")).text
            return [float(age) for age in re.findall(r"^relayq_task_age_seconds\{[^}]*\} (\S+)", text, re.MULTILINE)]

        async def fresh() -> bool:
            found = await ages()
            return len(found) >= 3 and max(found) < 7

        _ = await eventually(fresh, within=20)
        assert (await http.get(f"http://127.0.0.1:{metrics_port}/health/live")).status_code == 200
