"""The seed's queue protocol with nothing but Redis commands: a relay of redis-cli, and an operator's recipes."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from queuecore.job import JobRecord, Status
from queuecore.testing.clock import eventually
from queuecore.testing.fleet import Fleet
from queuecore.testing.raw_http import HeldModel
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Process, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

PENDING: Final = "relay:m:pending"
PROCESSING: Final = "relay:m:processing"
COMPLETED: Final = "jobs:m:completed"
FOREIGN_RESULT: Final = b'{"text": "from far away"}'


class SeedRelay:
    """What seeds/000 and 001 say a relay does, command by command; its files go straight into the store's folder."""

    def __init__(self, yard: Yard) -> None:
        self._redis = yard.link.call
        self._files = yard.directory / "blobs"

    async def pop(self) -> str:
        job_id = await self._redis("BLMOVE", PENDING, PROCESSING, "LEFT", "RIGHT", 10)
        assert job_id is not None
        return str(job_id)

    async def take_lease(self, job_id: str) -> None:
        assert await self._redis("SET", f"relay:m:lease:{job_id}", "pod-7", "EX", 60) == "OK"

    async def run(self, job_id: str) -> str:
        """Read the input, "infer", write the result; its key."""
        input_key, model = await self._redis("HMGET", f"job:{job_id}", "input_key", "model")
        assert model == "m"
        assert (self._files / input_key).read_bytes() == b"from a client"
        _ = (self._files / job_id / "result.json").write_bytes(FOREIGN_RESULT)
        return f"{job_id}/result.json"

    async def publish(self, job_id: str, status: str, **more: str) -> None:
        _ = await self._redis("PUBLISH", COMPLETED, json.dumps({"job_id": job_id, "status": status, **more}))

    async def done(self, job_id: str) -> None:
        _ = await self._redis("LREM", PROCESSING, 1, job_id)
        _ = await self._redis("DEL", f"relay:m:lease:{job_id}")


class Api:
    """A client of one gateway."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=30)

    async def submit(self) -> str:
        answer = await self._http.post("/jobs/echo", content=b"from a client")
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    async def status(self, job_id: str) -> dict[str, Any]:
        answer = await self._http.get(f"/jobs/echo/{job_id}")
        return answer.json() | {"etag": answer.headers["etag"]}

    async def after_a_change(self, job_id: str, etag: str, wait: int = 20) -> httpx.Response:
        return await self._http.get(f"/jobs/echo/{job_id}?wait={wait}", headers={"if-none-match": etag})

    async def result(self, job_id: str) -> httpx.Response:
        return await self._http.get(f"/jobs/echo/{job_id}/result")

    async def aclose(self) -> None:
        await self._http.aclose()


async def subscribed(yard: Yard) -> None:
    """The gateway listens to the seed's channel."""

    async def look() -> bool:
        return (await yard.link.call("PUBSUB", "NUMSUB", COMPLETED))[1] > 0

    _ = await eventually(look, within=10)


@pytest.fixture
async def believing(yard: Yard) -> AsyncIterator[Api]:
    """A gateway that applies what seed relays publish."""
    api = Api((await yard.gateway(GATEWAY_ACCEPT_SEED_COMPLETIONS="true")).url)
    await subscribed(yard)
    yield api
    await api.aclose()


@pytest.fixture
async def strict(yard: Yard) -> AsyncIterator[Api]:
    """A gateway as it comes."""
    api = Api((await yard.gateway()).url)
    yield api
    await api.aclose()


# -- a foreign relay ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adopted", [False, True], ids=["before a reaper came by", "adopted by the reaper"])
async def test_a_relay_of_plain_commands_completes_a_job(yard: Yard, believing: Api, adopted: bool) -> None:
    job_id = await believing.submit()
    relay = SeedRelay(yard)
    assert await relay.pop() == job_id
    await relay.take_lease(job_id)
    if adopted:
        _ = await yard.ready_reaper(REAPER_INTERVAL_SECONDS="0.1")

        async def taken_in() -> bool:
            return (await yard.status(job_id)).owner == "foreign"

        _ = await eventually(taken_in, within=10)
    etag = (await believing.status(job_id))["etag"]
    result_key = await relay.run(job_id)
    waiting = asyncio.create_task(believing.after_a_change(job_id, etag))
    await relay.publish(job_id, "completed", result_key=result_key)
    await relay.done(job_id)
    seen = (await waiting).json()
    assert seen["status"] == "completed"
    result = await believing.result(job_id)
    assert (result.status_code, result.content) == (200, FOREIGN_RESULT)
    await given_one_verdict(yard, job_id)


async def test_a_failure_that_a_relay_of_plain_commands_publishes_is_the_verdict(yard: Yard, believing: Api) -> None:
    job_id = await believing.submit()
    relay = SeedRelay(yard)
    _ = await relay.pop()
    await relay.take_lease(job_id)
    await relay.publish(job_id, "failed", error="inference returned 500")
    await relay.done(job_id)
    record = await yard.finished(job_id)
    assert (record.status, record.error_message) == (Status.FAILED, "inference returned 500")
    await given_one_verdict(yard, job_id)


async def test_nothing_published_is_applied_with_the_flag_off_and_the_job_runs_again(yard: Yard, strict: Api) -> None:
    job_id = await strict.submit()
    relay = SeedRelay(yard)
    _ = await relay.pop()
    await relay.take_lease(job_id)
    before = await strict.status(job_id)
    await relay.publish(job_id, "completed", result_key=await relay.run(job_id))
    assert (await strict.after_a_change(job_id, before["etag"], wait=2)).status_code == 304
    assert (await strict.status(job_id))["status"] == "pending"
    assert await yard.events() == []
    _ = await yard.link.call("DEL", f"relay:m:lease:{job_id}")  # it dies before it tidies up
    await yard.reap_the_dead()
    assert await (await yard.relay()).ended() == 0
    record = await yard.finished(job_id)
    await yard.check_result(record, b"from a client")
    await given_one_verdict(yard, job_id)


async def test_nothing_published_is_applied_while_a_relay_of_ours_has_the_job(
    valkey: ValkeyProcess, model: HeldModel, tmp_path: Path
) -> None:
    yard = held_yard(valkey, model, tmp_path)
    await yard.flush()
    api = Api((await yard.gateway(GATEWAY_ACCEPT_SEED_COMPLETIONS="true")).url)
    await subscribed(yard)
    job_id = await api.submit()
    ours = await yard.relay()
    _ = await model.asked(1)
    before = await api.status(job_id)
    relay = SeedRelay(yard)
    await relay.publish(job_id, "completed", result_key=await relay.run(job_id))
    await relay.publish(job_id, "cancelled")
    assert (await api.after_a_change(job_id, before["etag"], wait=2)).status_code == 304
    model.go_on.set()
    assert await ours.ended() == 0
    assert (await api.result(job_id)).content == b"1"
    await given_one_verdict(yard, job_id)
    await api.aclose()
    await yard.aclose()


async def given_one_verdict(yard: Yard, job_id: str) -> None:
    """One event was made and taken by the gateway; nothing is left."""
    counted = [0]

    async def taken() -> bool:
        gateway = next(process for process in yard.processes if "gateway" in process.log.name)
        relayed = [line["event_id"] for line in gateway.lines if line["event"] == "verdict.relayed"]
        counted[0] = relayed.count(f"{job_id}:1")
        return counted[0] > 0 and await yard.events() == []

    _ = await eventually(taken, within=10)
    assert counted == [1]
    assert await yard.operator.residue() == []


# -- an operator's recipes, while relays run ----------------------------------------------------------------------


def held_yard(valkey: ValkeyProcess, model: HeldModel, directory: Path, *, lease_seconds: int = 60) -> Yard:
    return Yard(valkey, model, directory, lease_seconds=lease_seconds)  # pyright: ignore[reportArgumentType]  only its url


@pytest.fixture
async def held(valkey: ValkeyProcess, model: HeldModel, tmp_path: Path) -> AsyncIterator[Yard]:
    """A yard whose model answers when it is told to, with leases that run out soon."""
    made = held_yard(valkey, model, tmp_path, lease_seconds=2)
    await made.flush()
    yield made
    await made.aclose()


async def running(yard: Yard, model: HeldModel) -> tuple[str, Process]:
    """A job and the relay that runs it."""
    job_id = await yard.submit()
    relay = await yard.relay()
    _ = await model.asked(1)
    return job_id, relay


async def dead(yard: Yard, model: HeldModel) -> str:
    """A job whose relay was killed and whose lease is over; no reaper has come by (``gc.enabled: false``)."""
    job_id, relay = await running(yard, model)
    relay.signal(signal.SIGKILL)
    _ = await relay.ended()

    async def lapsed() -> bool:
        return not await yard.link.call("EXISTS", f"relay:m:lease:{job_id}")

    _ = await eventually(lapsed, within=10)
    model.go_on.set()
    return job_id


async def ended_well(yard: Yard, job_id: str, *, claims: int) -> JobRecord:
    record = await yard.finished(job_id)
    assert (record.status, record.claims) == (Status.COMPLETED, claims), record
    assert await yard.events() == [record.event_id]
    assert await yard.operator.residue() == []
    return record


@requirement("operator:recipe:redis-cli-works")
async def test_lrange_of_processing_shows_what_runs(held: Yard, model: HeldModel) -> None:
    job_id, relay = await running(held, model)
    assert await held.link.call("LRANGE", PROCESSING, 0, -1) == [job_id]
    model.go_on.set()
    assert await relay.ended() == 0
    assert await held.link.call("LRANGE", PROCESSING, 0, -1) == []


@requirement("operator:recipe:redis-cli-works")
async def test_lmove_of_a_running_job_to_pending_gives_it_to_nobody_else(held: Yard, model: HeldModel) -> None:
    job_id, relay = await running(held, model)
    other = await held.relay(RELAY_QUEUE_POP_TIMEOUT_SECONDS="60")
    await held.idle(other)
    assert await held.link.call("LMOVE", PROCESSING, PENDING, "RIGHT", "LEFT") == job_id

    async def healed() -> bool:
        return await held.link.call("LRANGE", PROCESSING, 0, -1) == [job_id]

    _ = await eventually(healed, within=10)
    await held.idle(other)
    model.go_on.set()
    assert await relay.ended() == 0
    _ = await ended_well(held, job_id, claims=1)
    assert len(model.exchanges) == 1


@requirement("operator:recipe:redis-cli-works")
async def test_lmove_of_a_dead_relays_job_to_pending_runs_it_again(held: Yard, model: HeldModel) -> None:
    job_id = await dead(held, model)
    other = await held.relay(RELAY_QUEUE_POP_TIMEOUT_SECONDS="60")
    await held.idle(other)
    assert await held.link.call("LMOVE", PROCESSING, PENDING, "RIGHT", "LEFT") == job_id
    assert await other.ended() == 0
    record = await ended_well(held, job_id, claims=2)
    assert record.reaps == 1


@requirement("operator:recipe:redis-cli-works")
async def test_lrem_of_a_running_job_leaves_it_to_its_relay(held: Yard, model: HeldModel) -> None:
    job_id, relay = await running(held, model)
    _ = await held.ready_reaper(REAPER_INTERVAL_SECONDS="0.1")
    assert await held.link.call("LREM", PROCESSING, 1, job_id) == 1
    model.go_on.set()
    assert await relay.ended() == 0
    _ = await ended_well(held, job_id, claims=1)


@requirement("operator:recipe:redis-cli-works", "reconcile:reconcile:job-in-no-structure-returns")
async def test_lrem_of_a_dead_relays_job_brings_it_back_by_reconcile(held: Yard, model: HeldModel) -> None:
    job_id = await dead(held, model)
    assert await held.link.call("LREM", PROCESSING, 1, job_id) == 1
    assert await held.operator.places() == ([], [], [], [], [])
    async with Fleet(held, 2, RELAY_QUEUE_POP_TIMEOUT_SECONDS="60"):
        # the reaper's phase 6, whose two looks are half a minute apart by default
        looks = [await held.broker.reconcile(grace_ms=0) for _ in range(2)]
        assert [one.outcome for look in looks for one in look] == ["requeued"]
        record = await ended_well(held, job_id, claims=2)
    assert record.reaps == 1


@requirement("operator:recipe:redis-cli-works")
async def test_lrem_of_an_entry_whose_job_is_over_drops_it_and_nothing_else(held: Yard, model: HeldModel) -> None:
    model.go_on.set()
    job_id, relay = await running(held, model)
    assert await relay.ended() == 0
    before = await ended_well(held, job_id, claims=1)
    await held.operator.push_processing(job_id)
    assert await held.link.call("LREM", PROCESSING, 1, job_id) == 1
    assert await ended_well(held, job_id, claims=1) == before
