"""Who is dead and who only looks it: real relays before a reaper with default settings."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from queuecore.clock import monotonic
from queuecore.testing.clock import eventually
from queuecore.testing.proxy import SwallowingProxy
from queuecore.testing.raw_http import HeldModel
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Process, Served, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]

LEASE_SECONDS: Final = 5  # where a lease has to run out; the owners that must not lose theirs have it as well
LOOKS: Final = 5  # of the reaper, one a second: grace and notice of a death take four at the most


@pytest.fixture
async def short(lasting: ValkeyProcess, model: HeldModel, tmp_path: Path) -> AsyncIterator[Yard]:
    """A yard with short leases."""
    made = Yard(lasting, model, tmp_path, lease_seconds=LEASE_SECONDS)  # pyright: ignore[reportArgumentType]  only its url
    yield made
    await made.aclose()


async def looked(reaper: Served, times: int) -> None:
    """The reaper has finished so many more looks for the dead, without a failure."""

    async def looks() -> int:
        _, text = await reaper.get("/metrics")
        found = re.search(r'relayq_pass_seconds_count\{pass="death"\} (\S+)', text)
        return int(float(found[1])) if found else 0

    end = await looks() + times

    async def enough() -> bool:
        return await looks() >= end

    _ = await eventually(enough, within=times * 5, every=0.1)
    assert (await reaper.get("/health/ready"))[0] == 200


async def ran(yard: Yard, job_id: str, times: int) -> None:
    """The mock was asked for the job so many times."""

    async def look() -> bool:
        return (await yard.mock.runs())[job_id] == times

    _ = await eventually(look, within=15)


@pytest.mark.timeout(120)
@requirement("death:kill:noticed-in-seconds")
async def test_the_job_of_a_killed_relay_runs_again_in_under_5_s_five_times_in_a_row(
    yard: Yard, tell: Callable[[str], None]
) -> None:
    _ = await yard.ready_reaper()
    took: list[float] = []
    for number in range(5):
        content = f"round {number}".encode()
        job_id = await yard.submit(content, mock_hang=True, mock_times=1)
        victim = await yard.relay()
        assert (await victim.said("job.claimed"))["job_id"] == job_id
        await ran(yard, job_id, 1)
        other = await yard.relay(RELAY_QUEUE_POP_TIMEOUT_SECONDS="60")
        await yard.idle(other)
        victim.signal(signal.SIGKILL)
        killed_at = monotonic()
        await ran(yard, job_id, 2)
        took.append(monotonic() - killed_at)
        assert await other.ended() == 0
        record = await yard.check_one_good_end(job_id, content)
        assert (record.claims, record.reaps) == (2, 1)
    tell(f"kill -9 to running again: {', '.join(f'{seconds:.2f} s' for seconds in took)}")
    assert max(took) < 5, took


# -- stopped, not dead --------------------------------------------------------------------------------------------


async def requeued(yard: Yard, job_id: str) -> None:
    async def look() -> bool:
        record = await yard.status(job_id)
        return record.status == "pending" and record.reaps == 1

    _ = await eventually(look, within=LEASE_SECONDS + 20)


async def result_of(yard: Yard, job_id: str) -> bytes:
    record = await yard.finished(job_id)
    assert record.status == "completed", record
    async with yard.store.get(record.result_key) as chunks:
        return b"".join([chunk async for chunk in chunks])


@requirement("fence:complete:requeued-accepted", "death:stop:lease-decides")
async def test_a_run_stopped_past_its_lease_goes_on_while_nobody_else_has_the_job(
    short: Yard, model: HeldModel
) -> None:
    _ = await short.ready_reaper()
    job_id = await short.submit()
    relay = await short.relay()
    _ = await model.asked(1)
    relay.signal(signal.SIGSTOP)
    await requeued(short, job_id)
    relay.signal(signal.SIGCONT)
    _ = await relay.said("job.reaped")
    model.go_on.set()
    assert await relay.ended() == 0, relay.log.read_text("utf-8")
    assert await result_of(short, job_id) == b"1"
    record = await short.status(job_id)
    assert (record.claims, record.reaps) == (1, 1)
    assert await short.events() == [record.event_id]
    assert await short.operator.residue() == []


async def stopped_before_its_verdict(yard: Yard, model: HeldModel) -> tuple[str, Process]:
    """A job that was requeued while its relay is stopped: its result is stored, and ``complete`` not sent yet."""
    _ = await yard.ready_reaper()
    model.go_on.set()
    first = await yard.submit()
    assert await (await yard.relay()).ended() == 0  # from now on the server knows the scripts
    _ = await yard.finished(first)
    job_id = await yard.submit()
    log = yard.directory / "points"
    point = "redis EVALSHA#2:before"  # the first is claim
    relay = await yard.relay(faultpoint=True, FAULT_LOG=str(log), FAULT_AT=point, FAULT_ACTION="wait")
    _ = await eventually(lambda: log.exists() and f"{point}\n" in log.read_text("ascii"), within=30)
    model.go_on.clear()
    relay.signal(signal.SIGSTOP)
    await requeued(yard, job_id)
    return job_id, relay


@requirement("fence:complete:requeued-accepted", "death:stop:lease-decides")
async def test_the_work_of_a_relay_stopped_past_its_lease_counts_while_nobody_else_has_the_job(
    short: Yard, model: HeldModel
) -> None:
    job_id, relay = await stopped_before_its_verdict(short, model)
    await relay.go_on()
    relay.signal(signal.SIGCONT)
    assert await relay.ended() == 0, relay.log.read_text("utf-8")
    assert await result_of(short, job_id) == b"2"
    record = await short.status(job_id)
    assert (record.claims, record.reaps) == (1, 1)
    assert (await short.events()).count(record.event_id) == 1
    assert await short.operator.residue() == []


@requirement("verdict:complete:late-one-refused", "fence:complete:stale-refused", "result:complete:winners-bytes")
async def test_the_verdict_of_a_relay_stopped_past_its_lease_is_refused_once_another_has_the_job(
    short: Yard, model: HeldModel
) -> None:
    job_id, late = await stopped_before_its_verdict(short, model)
    winner = await short.relay()
    _ = await model.asked(3)
    await late.go_on()
    late.signal(signal.SIGCONT)
    assert await late.ended() == 3, late.log.read_text("utf-8")
    assert next(line["verb"] for line in late.lines if line["event"] == "claim.lost") == "complete"
    assert (await short.status(job_id)).status == "processing"
    model.go_on.set()
    assert await winner.ended() == 0
    assert await result_of(short, job_id) == b"3"
    record = await short.status(job_id)
    assert (record.claims, record.reaps) == (2, 1)
    assert (await short.events()).count(record.event_id) == 1
    assert await short.operator.residue() == []


@requirement("fence:renew:stale-refused", "result:complete:winners-bytes")
async def test_a_run_stopped_past_its_lease_is_ended_once_another_has_the_job(short: Yard, model: HeldModel) -> None:
    _ = await short.ready_reaper()
    job_id = await short.submit()
    late = await short.relay()
    await model.asked(1)
    late.signal(signal.SIGSTOP)
    await requeued(short, job_id)
    winner = await short.relay()
    await model.asked(2)
    late.signal(signal.SIGCONT)
    assert await late.ended() == 3, late.log.read_text("utf-8")
    model.go_on.set()
    assert await winner.ended() == 0
    assert await result_of(short, job_id) == b"2"
    record = await short.status(job_id)
    assert (record.claims, record.reaps) == (2, 1)
    assert await short.events() == [record.event_id]
    assert await short.operator.residue() == []


# -- cut off, not dead --------------------------------------------------------------------------------------------


async def kept_by_their_owners(yard: Yard, owners: dict[str, Process], model: HeldModel) -> None:
    """Each owner finishes the job that it had all along."""
    model.go_on.set()
    for job_id, owner in owners.items():
        assert await owner.ended() == 0, owner.log.read_text("utf-8")
        record = await yard.finished(job_id)
        assert (record.status, record.claims, record.reaps) == ("completed", 1, 0), record
    assert len(model.exchanges) == len(owners)
    assert sorted(await yard.events()) == sorted([f"{job_id}:1" for job_id in owners])
    assert await yard.operator.residue() == []


async def client_kill(yard: Yard, _: SwallowingProxy) -> None:
    for kind in ("normal", "pubsub"):
        assert await yard.link.call("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


async def proxy_reset(_: Yard, proxy: SwallowingProxy) -> None:
    assert await proxy.reset() >= 2


async def server_timeout(yard: Yard, _: SwallowingProxy) -> None:
    _ = await yard.link.call("CONFIG", "SET", "timeout", 1)  # idle connections of whoever it is


@pytest.mark.parametrize("cut", [client_kill, proxy_reset, server_timeout])
@requirement("death:reconnect:owner-keeps-its-job")
async def test_a_live_owner_whose_connections_are_cut_keeps_its_job(
    short: Yard, lasting: ValkeyProcess, model: HeldModel, cut: Callable[[Yard, SwallowingProxy], Awaitable[None]]
) -> None:
    reaper = await short.ready_reaper()
    async with SwallowingProxy(lasting.port) as proxy:
        job_id = await short.submit()
        owner = await short.relay(REDIS_URL=f"redis://127.0.0.1:{proxy.port}/0")
        await model.asked(1)
        await cut(short, proxy)
        await looked(reaper, LOOKS)
        await kept_by_their_owners(short, {job_id: owner}, model)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("down_seconds", [1, LEASE_SECONDS + 1])
@requirement("restart:reap:owners-get-a-lease")
async def test_every_owner_keeps_its_job_through_a_restart_of_redis(
    short: Yard, lasting: ValkeyProcess, model: HeldModel, down_seconds: int
) -> None:
    reaper = await short.ready_reaper(REAPER_INTERVAL_SECONDS="0.1")  # it looks before owners can renew
    owners: dict[str, Process] = {}
    for number in range(3):
        job_id = await short.submit()
        owners[job_id] = await short.relay()
        await model.asked(number + 1)
    lasting.kill()
    end = monotonic() + down_seconds
    _ = await eventually(lambda: monotonic() >= end, within=down_seconds + 5)
    _ = lasting.start()
    _ = await reaper.ready()
    await looked(reaper, LEASE_SECONDS + 2)  # the reaper's grace is over, too
    await kept_by_their_owners(short, owners, model)
