"""Several reapers on one queue (case A8, timeline t04), and reapers beside relays that do not die (case B4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from queuecore.broker import NewJob, Result, Worker
from queuecore.config import ModelConfig
from queuecore.names import new_claim_id
from queuecore.redis import RedisQueue
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess
from reaper.upkeep import Upkeep

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

Running = Callable[..., AbstractAsyncContextManager[Upkeep]]
CONFIG = ModelConfig(service_type="test", operations={"run": "/run"}, lease_seconds=60)


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as valkey:
        yield valkey


@pytest.fixture
async def queues(server: ValkeyProcess) -> AsyncIterator[list[RedisQueue]]:
    made = [RedisQueue(CommonSettings(redis_url=Secret(server.url)), name=f"test-{number}") for number in range(4)]
    _ = await made[0].server._link.call("FLUSHALL")
    yield made
    for queue in made:
        await queue.aclose()


@requirement("reap:race:many-reapers-reap-once")
async def test_three_reapers_on_one_lapsed_entry_put_it_back_once_200_rounds(queues: list[RedisQueue]) -> None:
    broker, *reapers = [queue.broker("m", CONFIG) for queue in queues]
    link: Any = queues[0].server._link
    outcomes = Counter[str]()
    for number in range(200):
        job_id = f"j{number}"
        _ = await broker.submit(NewJob(id=job_id, fields={}))
        claim = await broker.claim(Worker("w"), new_claim_id())
        assert claim is not None
        _ = await link.call("DEL", f"relay:m:lease:{job_id}")
        _ = await link.call("HSET", f"job:{job_id}", "lease_until", 1)

        looks = await asyncio.gather(*(reaper.reap() for reaper in reapers))

        outcomes += Counter(reaped.outcome for look in looks for reaped in look)
        assert await link.call("LRANGE", "relay:m:pending", 0, -1) == [job_id]
        assert await link.call("LLEN", "relay:m:processing") == 0
        record = await broker.get(job_id)
        assert (record.status, record.reaps) == ("pending", 1)
        _ = await broker.cancel(job_id)

    assert outcomes["requeued"] == 200
    assert outcomes.keys() <= {"requeued", "skipped"}


@requirement("reap:race:many-reapers-reap-once")
async def test_three_death_notices_of_one_owner_count_once_50_rounds(queues: list[RedisQueue]) -> None:
    broker, *reapers = [queue.broker("m", CONFIG) for queue in queues]
    for number in range(50):
        job_id = f"j{number}"
        _ = await broker.submit(NewJob(id=job_id, fields={}))
        _ = await broker.claim(Worker("w", "run:7"), new_claim_id())
        (owned,) = await broker.owners()

        reaped = await asyncio.gather(*(reaper.reap_dead(owned, "gone") for reaper in reapers))

        assert sorted(one.outcome for one in reaped) == ["requeued", "skipped", "skipped"]
        record = await broker.get(job_id)
        assert (record.status, record.reaps, record.last_exit) == ("pending", 1, "gone")
        _ = await broker.cancel(job_id)


@pytest.mark.slow
@requirement("claim:claim:no-crash-one-run")
async def test_200_jobs_run_exactly_once_while_three_reapers_loop_every_10_ms(
    queues: list[RedisQueue], running: Running
) -> None:
    submitter = queues[0].broker("m", CONFIG)
    for number in range(200):
        _ = await submitter.submit(NewJob(id=f"j{number:03}", fields={}))
    runs = Counter[str]()

    async def work(name: str) -> None:
        worker = RedisQueue(queues[0]._common, name=name)
        broker, connected = worker.broker("m", CONFIG), asyncio.Event()
        client = ""

        def note(connection: str) -> None:
            nonlocal client
            client = connection
            connected.set()

        async def listen() -> None:
            async for _ in worker.signals.cancels("m", note):
                pass

        listening = asyncio.create_task(listen())
        _ = await connected.wait()
        while claim := await broker.claim(Worker(name, client), new_claim_id()):
            runs[claim.job_id] += 1
            _ = await broker.renew(claim, client)
            _ = await broker.complete(claim, Result("key", 1, "text/plain", "00"))
        _ = listening.cancel()
        await worker.aclose()

    def reaper(queue: RedisQueue) -> AbstractAsyncContextManager[Upkeep]:
        return running([queue.broker("m", CONFIG)], queue.server, queue.signals, interval_seconds=0.01)

    async with reaper(queues[1]), reaper(queues[2]), reaper(queues[3]):
        _ = await asyncio.gather(*(work(f"w{number}") for number in range(4)))
    counts = await submitter.counts()

    assert runs == Counter({f"j{number:03}": 1 for number in range(200)})
    assert (counts.pending, counts.processing, counts.outbox) == (0, 0, 200)
