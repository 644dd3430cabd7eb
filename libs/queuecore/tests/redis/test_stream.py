"""What only the streams have: lanes, entries that keep their place, litter, trims, workers of another make (seed 003)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from queuecore.broker import Claim, NewJob, QueueLimits, Result, Worker
from queuecore.clock import monotonic
from queuecore.redis.client import Link
from queuecore.redis.records import fields_of
from queuecore.redis.stream_transport import StreamBroker
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import ManualClock, eventually
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
LIMITS = QueueLimits(order="lanes")
RESULT = Result("k", 1, "text/plain", "0" * 64)
STREAM = "relay:m:stream"


class Table:
    """A queue, redis-cli on its keys, and the clock of its scripts."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.clock = ManualClock()
        self.broker = StreamBroker(link, "m", LIMITS, clock=self.clock)

    async def submit(self, *job_ids: str, priority: str = "normal", **fields: str) -> None:
        for job_id in job_ids:
            _ = await self.broker.submit(NewJob(id=job_id, fields=fields, priority=priority))

    async def claim(self, claim_id: str = "c1") -> Claim:
        found = await self.broker.claim(Worker("w"), claim_id)
        assert found is not None
        return found

    async def step(self, name: str) -> list[str]:
        """One script of a pause or of its end, as if the process that drives them died after it."""
        params = {"reason": "operator", "cooldown_ms": ""} if name == "pause" else {}
        return await self.broker._run(name, **params)

    async def rest(self) -> list[str]:
        """What runs, in order, until nothing is left."""
        found: list[str] = []
        while claim := await self.broker.claim(Worker("w"), f"rest{len(found)}"):
            found.append(claim.job_id)
            _ = await self.broker.complete(claim, RESULT)
        return found

    async def entry_of(self, job_id: str) -> str:
        return (await self.link.call("HGET", f"{STREAM}:entries", job_id)).split(" ")[1]

    async def group(self) -> dict[str, Any]:
        (found,) = await self.link.call("XINFO", "GROUPS", STREAM)
        return fields_of(found)


async def commands(link: Link) -> int:
    """How many commands scripts ran since the counters were reset (EVAL, EXISTS and CONFIG are not counted)."""
    lines = (await link.call("INFO", "commandstats")).splitlines()
    rows = [line for line in lines if line.startswith("cmdstat_") and not line.startswith(("cmdstat_e", "cmdstat_c"))]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in rows)


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as valkey:
        yield valkey


@pytest.fixture
async def table(server: ValkeyProcess) -> AsyncIterator[Table]:
    link = Link(CommonSettings(redis_url=Secret(server.url)), name="stream")
    _ = await link.call("FLUSHALL")
    made = Table(link)
    yield made
    await made.broker.aclose()
    await link.aclose()


async def test_length_is_what_waits_and_runs_and_the_groups_lag_stays_known(table: Table) -> None:
    await table.submit("a", "b", "c", "d")
    claim = await table.claim()
    _ = await table.broker.cancel("c")
    assert await table.link.call("XLEN", STREAM) == 4, "an undelivered entry is never deleted"
    _ = await table.broker.complete(claim, RESULT)
    assert (await table.group())["lag"] == 3
    assert (await table.broker.counts()).pending == 2

    assert await table.rest() == ["b", "d"]
    group = await table.group()
    assert (group["lag"], group["pending"], await table.link.call("XLEN", STREAM)) == (0, 0, 0)
    assert await table.link.call("SCARD", f"{STREAM}:litter") == 0


async def test_high_runs_before_normal_and_each_lane_in_its_order(table: Table) -> None:
    await table.submit("n1", "n2")
    await table.submit("h1", "h2", priority="high")
    assert await table.rest() == ["h1", "h2", "n1", "n2"]


async def test_a_released_entry_keeps_its_place_ahead_of_those_not_delivered(table: Table) -> None:
    await table.submit("a", "b", "c")
    first, second = await table.claim("c1"), await table.claim("c2")
    entry = await table.entry_of("a")
    _ = await table.broker.release(second)
    _ = await table.broker.release(first)
    assert await table.entry_of("a") == entry
    assert await table.rest() == ["a", "b", "c"]


@requirement("transport:stream:xdel")
async def test_an_undelivered_entry_that_somebody_deleted_comes_back(table: Table) -> None:
    await table.submit("a", "b", "c")
    _ = await table.link.call("XDEL", STREAM, await table.entry_of("b"))
    for _ in range(2):
        _ = await table.broker.reconcile()
        table.clock.advance(30_000)
    assert (await table.broker.counts()).pending == 3
    assert sorted(await table.rest()) == ["a", "b", "c"]


@requirement("transport:stream:trim")
async def test_a_trim_under_running_released_and_waiting_entries_loses_nothing(table: Table) -> None:
    await table.submit("a", "b", "c")
    running, back = await table.claim("c1"), await table.claim("c2")
    _ = await table.broker.release(back)
    _ = await table.link.call("XTRIM", STREAM, "MAXLEN", 0)
    _ = await table.broker.renew(running)
    for _ in range(2):
        _ = await table.broker.reconcile()
        table.clock.advance(29_999)
        _ = await table.broker.renew(running)
    table.clock.advance(2)
    _ = await table.broker.reconcile()
    _ = await table.broker.complete(running, RESULT)
    assert await table.rest() == ["b", "c"]


@requirement("transport:stream:dead-consumer")
async def test_a_consumer_that_an_operator_deleted_takes_no_entry_with_it(table: Table) -> None:
    await table.submit("a", "b")
    _ = await table.broker.release(await table.claim())
    for consumer in ("claimed", "released"):
        _ = await table.link.call("XGROUP", "DELCONSUMER", STREAM, "workers", consumer)
    for _ in range(2):
        _ = await table.broker.reconcile()
        table.clock.advance(30_000)
    assert await table.rest() == ["b", "a"], "its place went with its entry"


async def test_a_dead_worker_leaves_no_consumer_behind(table: Table) -> None:
    await table.submit("a")
    for number in range(3):
        _ = await table.broker.claim(Worker(f"relay-{number}"), f"c{number}")
        table.clock.advance(60_001)
        _ = await table.broker.reap()
    names = {fields_of(one)["name"] for one in await table.link.call("XINFO", "CONSUMERS", STREAM, "workers")}
    assert names == {"claimed", "released"}


async def test_a_worker_of_another_make_is_respected_while_it_is_not_idle_for_a_minute(table: Table) -> None:
    await table.submit("a")
    read = ("XREADGROUP", "GROUP", "workers", "consumer-7", "COUNT", 1, "STREAMS", STREAM, ">")
    assert await table.link.call(*read)
    assert [one.outcome for one in await table.broker.reap()] == ["adopted"]
    assert await table.broker.claim(Worker("w"), "c1") is None
    idle = ("XCLAIM", STREAM, "workers", "consumer-7", 0, await table.entry_of("a"), "IDLE", 60_000, "JUSTID")
    _ = await table.link.call(*idle)
    assert [one.outcome for one in await table.broker.reap()] == ["waiting"]
    table.clock.advance(5_000)
    assert [one.outcome for one in await table.broker.reap()] == ["requeued"]
    assert (await table.claim()).record.reaps == 1


async def test_an_entry_that_is_no_job_of_ours_stops_nobody_and_is_removed(table: Table) -> None:
    _ = await table.link.call("XADD", STREAM, "*", "run_id", "r", "input", "{}")
    _ = await table.link.call("XADD", STREAM, "*", "job_id", "stranger")
    await table.submit("a")
    assert (await table.claim()).job_id == "a"
    assert await table.link.call("XLEN", STREAM) == 1


async def test_dead_letters_are_a_stream_of_their_own(table: Table) -> None:
    strict = StreamBroker(table.link, "m", LIMITS._replace(max_reap_attempts=0), clock=table.clock)
    await table.submit("a")
    _ = await table.claim()
    table.clock.advance(60_001)
    assert [one.outcome for one in await strict.reap()] == ["deadletter"]
    ((_, flat),) = await table.link.call("XRANGE", f"{STREAM}:dead", "-", "+")
    assert fields_of(flat)["job_id"] == "a"
    assert (await table.broker.counts()).deadletter == 1
    await table.broker.redrive("a")
    assert await table.link.call("XLEN", f"{STREAM}:dead") == 0
    assert await table.rest() == ["a"]
    await strict.aclose()


async def test_a_paused_queue_shows_an_empty_stream_and_resuming_keeps_every_place(table: Table) -> None:
    await table.submit("a", "b", "c", "d")
    running = await table.claim("c1")
    _ = await table.broker.release(await table.claim("c2"))
    await table.broker.pause()
    assert await table.link.call("XLEN", STREAM) == 1, "the running one"
    await table.submit("e")
    _ = await table.broker.release(running)
    await table.broker.resume()
    assert await table.rest() == ["a", "b", "c", "d", "e"]
    assert (await table.group())["lag"] == 0


@requirement("pause:pause:bounded-script")
async def test_a_script_of_a_pause_or_of_its_end_runs_as_many_commands_however_many_jobs_wait(table: Table) -> None:
    counted: list[dict[str, int]] = []
    for waiting in (450, 900):
        _ = await table.link.call("FLUSHALL")
        await table.submit(*(f"j{number:03}" for number in range(waiting)))
        ran: dict[str, int] = {}
        for step, name in (("pause", "pause"), ("settle", "edge/settle"), ("rest", ""), ("resume", "resume"),
                           ("settle back", "edge/settle")):  # fmt: skip
            if not name:
                assert await table.broker.promote() == 0
                continue
            _ = await table.link.call("CONFIG", "RESETSTAT")
            reply = await table.step(name)
            ran[step] = await commands(table.link)
            assert reply == ["more"], step
        counted.append(ran)
    assert counted[0] == counted[1]
    assert max(counted[0].values()) < 2_000, counted


@requirement("pause:pause:bounded-script", "pause:pause:hidden-and-kept")
async def test_a_pause_whose_driver_died_holds_claims_and_takes_submissions_and_promote_goes_on(table: Table) -> None:
    names = [f"j{number:03}" for number in range(450)]
    await table.submit(*names[1:])
    await table.submit(names[0], priority="high")
    running = await table.claim("r1")
    back = await table.claim("r2")
    assert [running.job_id, back.job_id] == names[:2]
    assert await table.step("pause") == ["more"]
    assert await table.broker.claim(Worker("w"), "c1") is None
    await table.submit("late")
    _ = await table.broker.release(back)
    assert (await table.broker.counts()).pending > 0, "the rest is in the stream still"
    _ = await table.broker.promote()
    counts = await table.broker.counts()
    assert (counts.pending, counts.processing, counts.paused) == (0, 1, 450)

    assert await table.step("resume") == ["more"]
    assert await table.broker.claim(Worker("w"), "c2") is None, "before all is back somebody would be overtaken"
    await table.submit("later", priority="high")
    _ = await table.broker.release(running)
    _ = await table.broker.promote()
    assert await table.rest() == [names[0], "later", *names[1:], "late"]
    assert (await table.group())["lag"] == 0


@requirement("pause:pause:hidden-and-kept")
@pytest.mark.parametrize(
    "turns", ["pause resume", "pause promote resume pause resume", "pause promote resume pause promote resume"]
)
async def test_a_pause_ended_half_done_and_an_end_that_is_paused_half_done_keep_the_order(
    table: Table, turns: str
) -> None:
    names = [f"j{number:03}" for number in range(650)]
    await table.submit(*names)
    for claim in [await table.claim(f"r{number}") for number in range(3)]:
        _ = await table.broker.release(claim)
    for turn in turns.split():
        if turn == "promote":
            _ = await table.broker.promote()
            continue
        reply = await table.step(turn)
        assert reply == ["more"], turn
    _ = await table.broker.promote()
    assert await table.rest() == names


@requirement("transport:stream:adr-message")
async def test_the_message_of_the_decision_record_travels_as_params_and_its_run_in_order(table: Table) -> None:
    message = (
        '{"run_id": "r1", "step_id": "s%d", "step_type": "llm", "input": {}, "tenant_id": "t", "agent_id": "a",'
        ' "priority": 0}'
    )
    for number in range(3):
        job = NewJob(id=f"s{number}", fields={"params": message % number}, priority="normal", ordering_key="r1")
        _ = await table.broker.submit(job)
    seen: list[str] = []
    while claim := await table.broker.claim(Worker("w"), f"c{len(seen)}"):
        assert await table.broker.claim(Worker("other"), "x") is None, "jobs of one run are processed in order"
        seen.append(claim.record.params)
        _ = await table.broker.complete(claim, RESULT)
    assert seen == [message % number for number in range(3)]


async def test_dispatch_is_far_under_the_hundred_milliseconds_of_the_decision_record(table: Table) -> None:
    waits: list[float] = []
    for number in range(10):
        began = 0.0
        async with anyio.create_task_group() as group:

            async def take(number: int = number) -> None:
                assert await table.broker.claim(Worker("w"), f"c{number}", wait_seconds=5) is not None
                waits.append(monotonic())

            group.start_soon(take)

            async def blocked() -> bool:
                return "cmd=blpop" in await table.link.call("CLIENT", "LIST")

            _ = await eventually(blocked)
            began = monotonic()
            await table.submit(f"j{number}")
        waits[-1] -= began
    assert sorted(waits)[len(waits) // 2] < 0.1
