"""A thousand documents through four stages while workers are killed at random: each stage's effect exactly once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Final

import pytest

from queuecore.broker import NewJob, QueueLimits, Result, Worker
from queuecore.errors import ClaimLost
from queuecore.job import JobRecord, Status, Step, result_key, run_fields
from queuecore.names import new_claim_id
from queuecore.redis.client import Link
from queuecore.redis.stage_transport import StageBroker
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import eventually
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
STAGES: Final = ("store", "chunk", "embed", "graph")
PLAN: Final = [Step(stage, "op", f"/{stage}", "raw") for stage in STAGES]
LIMITS: Final = QueueLimits(lease_ms=300, order="stage", max_pending=10_000)
DOCUMENTS: Final = 1_000
WORKERS_A_STAGE: Final = 4
CHANCE_OF_DEATH: Final = 0.04  # at each of three instants of a run


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as valkey:
        yield valkey


def link_to(server: ValkeyProcess, name: str) -> Link:
    return Link(CommonSettings(redis_url=Secret(server.url)), name=name)


@pytest.fixture
async def link(server: ValkeyProcess) -> AsyncIterator[Link]:
    made = link_to(server, "test")
    _ = await made.call("FLUSHALL")
    yield made
    await made.aclose()


@pytest.fixture
async def watcher(server: ValkeyProcess) -> AsyncIterator[Link]:
    made = link_to(server, "watcher")
    yield made
    await made.aclose()


class Killed(Exception):
    """The worker is no more; what it held is held until its lease is over."""


class Plant:
    """Workers of every stage, what they have stored, and who dies between two of its steps."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.objects: dict[str, str] = {}  # key -> bytes: the store
        self.random = random.Random(4)
        self.kills = 0
        self.redriven = 0

    async def work(self, stage: str) -> None:
        """One place of the stage: a worker that dies is replaced."""
        while True:
            broker = StageBroker(self.link, stage, LIMITS)
            with suppress(Killed):
                await self._serve(broker)
            await broker.aclose()

    async def _serve(self, broker: StageBroker) -> None:
        while True:
            claim = await broker.claim(Worker("w"), new_claim_id())
            if claim is None:
                await asyncio.sleep(0.02)
                continue
            self._perhaps_die()
            key = result_key(claim.job_id, claim.fence, claim.claim_id)
            self.objects[key] = f"{self.objects[claim.record.input_key]} {broker.model}"
            self._perhaps_die()
            with suppress(ClaimLost):  # it took longer than its lease, and somebody else has it
                _ = await broker.complete(claim, Result(key, len(self.objects[key]), "text/plain", "0" * 64))
            self._perhaps_die()

    def _perhaps_die(self) -> None:
        if self.random.random() < CHANCE_OF_DEATH:
            self.kills += 1
            raise Killed


@pytest.mark.timeout(180)
@requirement("pipeline:kill:each-effect-once")
async def test_a_thousand_documents_go_through_four_stages_whoever_is_killed(link: Link) -> None:
    plant = Plant(link)
    brokers = [StageBroker(link, stage, LIMITS) for stage in STAGES]
    ids = [f"doc-{number:04}" for number in range(DOCUMENTS)]
    for job_id in ids:
        plant.objects[f"{job_id}/input"] = job_id
        fields = {"input_key": f"{job_id}/input", "input_size": "8"} | run_fields("ingest", PLAN)
        _ = await brokers[0].submit(NewJob(id=job_id, fields=fields, priority="normal"))
    places = [asyncio.create_task(plant.work(stage)) for stage in STAGES * WORKERS_A_STAGE]

    async def upkeep() -> bool:
        """What the reaper does; dead letters are resumed, as an operator would."""
        for broker in brokers:
            _ = await broker.reap()
            for record in await broker.deadletters():
                plant.redriven += 1
                await broker.redrive(record.id)
        return int(await link.call("GET", "stats:graph:completed") or 0) >= DOCUMENTS

    _ = await eventually(upkeep, within=150)
    for place in places:
        _ = place.cancel()
    _ = await asyncio.gather(*places, return_exceptions=True)

    assert plant.kills > DOCUMENTS // 10
    records = [await brokers[0].get(job_id) for job_id in ids]
    assert Counter(record.status for record in records) == {Status.COMPLETED: DOCUMENTS}
    for record in records:
        assert chain(plant.objects, record) == [" ".join([record.id, *STAGES[: at + 1]]) for at in range(len(STAGES))]
    for stage in STAGES:
        assert int(await link.call("GET", f"stats:{stage}:completed")) == DOCUMENTS
        assert await link.call("EXISTS", f"queue:{stage}", f"processing:{stage}", f"deadletter:{stage}") == 0
    events = [event for broker in brokers for event in await broker.events("t", limit=10_000)]
    finals = Counter(event.job_id for event in events if event.status == Status.COMPLETED)
    assert finals == Counter(ids), "one verdict a document"
    assert len(events) == DOCUMENTS + plant.redriven, "and one for each death too many, before it was resumed"
    assert await link.call("EXISTS", "failed:counts") == 0


def chain(objects: dict[str, str], record: JobRecord) -> list[str]:
    """What the winning claim of each stage stored, in order."""
    return [objects[key] for key in [*(past.result_key for past in record.history), record.result_key]]


@requirement("pipeline:complete:before-and-after-only")
async def test_a_watcher_of_complete_sees_only_before_and_after(link: Link, watcher: Link) -> None:
    first = StageBroker(link, "store", LIMITS._replace(lease_ms=60_000))
    script = (
        "local seen = {redis.call('HEXISTS','processing:store','d'), redis.call('ZSCORE','queue:chunk','d') and 1 or 0,"
        " redis.call('ZSCORE','relay:store:jobs','d') and 1 or 0, redis.call('ZSCORE','relay:chunk:jobs','d') and 1 or 0,"
        " tonumber(redis.call('GET','stats:store:completed') or '0'), redis.call('HGET','job:d','model')} return seen"
    )
    before, after = [1, 0, 1, 0, 0, "store"], [0, 1, 0, 1, 1, "chunk"]
    for _ in range(50):
        _ = await link.call("FLUSHALL")
        _ = await first.submit(NewJob(id="d", fields=run_fields("ingest", PLAN[:2]), priority="normal"))
        claim = await first.claim(Worker("w"), new_claim_id())
        assert claim is not None
        seen: list[object] = []

        async def watch(seen: list[object] = seen) -> None:
            while not seen or seen[-1] != after:
                seen.append(await watcher.call("EVAL", script, 0))

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        result = Result(result_key("d", claim.fence, claim.claim_id), 1, "text/plain", "0" * 64)
        _ = await first.complete(claim, result)
        await watching
        assert all(one in (before, after) for one in seen), seen
