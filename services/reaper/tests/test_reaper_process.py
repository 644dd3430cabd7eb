"""The reaper as a process, owners as processes, a real server: kills, cuts, stops and restarts."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from queuecore.broker import Worker
from queuecore.clock import monotonic
from queuecore.names import new_claim_id
from queuecore.testing.clock import eventually
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

Stacks = Callable[[int], AbstractAsyncContextManager[Any]]  # of conftest's Stack


async def pass_time(seconds: float) -> None:
    """Let real time go by that only the server and the processes can measure."""
    end = monotonic() + seconds
    _ = await eventually(lambda: monotonic() >= end, within=seconds + 5)


@pytest.mark.slow
@requirement("death:kill:noticed-in-seconds")
async def test_a_killed_owner_is_replaced_in_under_5_s_five_times_with_default_settings(stacks: Stacks) -> None:
    took: list[float] = []
    async with stacks(60) as stack:
        reaper = stack.reaper()
        await reaper.ready()
        await stack.submit("victim-0")
        for number in range(5):
            owner = stack.owner()
            job_id, _ = await owner.claimed()
            _ = await owner.end(signal.SIGKILL)
            killed_at = monotonic()
            claim = await stack.broker.claim(Worker("next"), new_claim_id(), wait_seconds=10)
            took.append(monotonic() - killed_at)
            assert claim is not None
            assert (claim.job_id, claim.record.reaps) == (job_id, 1)
            _ = await stack.broker.release(claim)
            _ = await stack.broker.cancel(job_id)
            await stack.submit(f"victim-{number + 1}")
        _, text = reaper.get("/metrics")

    assert max(took) < 5, took
    assert 'gatewai_async_jobs_reaped_total{model="m",outcome="requeued"} 5.0' in text


@requirement("death:reconnect:owner-keeps-its-job")
async def test_an_owner_whose_connections_are_cut_registers_anew_and_keeps_its_job(stacks: Stacks) -> None:
    async with stacks(60) as stack:
        reaper = stack.reaper()
        await reaper.ready()
        await stack.submit("j")
        owner = stack.owner()
        _ = await owner.claimed()
        for cut in range(1, 4):
            (claim,) = await stack.broker.owners()
            killed = await stack.queue.server._link.call("CLIENT", "KILL", "ID", claim.client.rpartition(":")[2])
            assert killed == 1
            _ = await eventually(lambda cut=cut: len(owner.registrations()) >= cut)
        await pass_time(4)
        record = await stack.broker.get("j")

    assert (record.status, record.reaps, record.claims) == ("processing", 0, 1)
    assert owner.code is None or owner.code < 0, "never told that it lost its claim"


@requirement("death:reconnect:owner-keeps-its-job")
async def test_an_owner_keeps_its_job_when_every_connection_of_the_server_is_cut(stacks: Stacks) -> None:
    async with stacks(60) as stack:
        reaper = stack.reaper()
        await reaper.ready()
        await stack.submit("j")
        owner = stack.owner()
        _ = await owner.claimed()
        for kind in ("pubsub", "normal", "pubsub"):
            _ = await stack.queue.server._link.call("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        await pass_time(4)
        await reaper.ready()
        record = await stack.broker.get("j")

    assert (record.status, record.reaps) == ("processing", 0)


@requirement("restart:reap:owners-get-a-lease")
@pytest.mark.parametrize("down_seconds", [1, 5])
async def test_an_owner_keeps_its_job_through_a_restart_of_redis(
    stacks: Stacks, valkey: ValkeyProcess, down_seconds: int
) -> None:
    async with stacks(3) as stack:
        reaper = stack.reaper(REAPER_INTERVAL_SECONDS="0.2")
        await reaper.ready()
        await stack.submit("j")
        owner = stack.owner()
        _, before = await owner.claimed()
        valkey.stop()
        await pass_time(down_seconds)
        _ = valkey.start()
        _ = await eventually(owner.registrations, within=10)
        await pass_time(stack.lease_seconds + 2)
        await reaper.ready()
        record = await stack.broker.get("j")

    assert (record.status, record.reaps) == ("processing", 0)
    assert record.owner_client != before


@requirement("restart:reap:owners-get-a-lease")
async def test_the_job_of_an_owner_that_died_with_redis_waits_one_lease_and_is_reaped(
    stacks: Stacks, valkey: ValkeyProcess
) -> None:
    async with stacks(3) as stack:
        reaper = stack.reaper(REAPER_INTERVAL_SECONDS="0.2")
        await reaper.ready()
        await stack.submit("j")
        owner = stack.owner()
        _ = await owner.claimed()
        valkey.kill()
        _ = await owner.end(signal.SIGKILL)
        await pass_time(4)
        _ = valkey.start()
        back_at = monotonic()
        await stack.until("j", "pending", within=15)
        waited = monotonic() - back_at

    assert waited > 2.5, "the lease was over before the restart: only the grace held the reaper back"


@requirement("restart:reap:owners-get-a-lease")
async def test_a_reaper_that_was_restarted_with_redis_waits_too(stacks: Stacks, valkey: ValkeyProcess) -> None:
    async with stacks(3) as stack:
        await stack.submit("j")
        owner = stack.owner()
        _ = await owner.claimed()
        owner.send(signal.SIGSTOP)  # it lives, and has not had the time to register anew
        valkey.stop()
        await pass_time(4)
        _ = valkey.start()
        reaper = stack.reaper(REAPER_INTERVAL_SECONDS="0.2")
        await reaper.ready()
        owner.send(signal.SIGCONT)
        _ = await eventually(owner.registrations, within=10)
        await pass_time(4)
        record = await stack.broker.get("j")

    assert (record.status, record.reaps) == ("processing", 0)


@requirement("death:stop:lease-decides")
async def test_a_stopped_owner_keeps_its_job_until_its_lease_is_over(stacks: Stacks) -> None:
    async with stacks(8) as stack:
        reaper = stack.reaper(REAPER_INTERVAL_SECONDS="0.2")
        await reaper.ready()
        await stack.submit("j")
        owner = stack.owner()
        _ = await owner.claimed()
        owner.send(signal.SIGSTOP)
        stopped_at = monotonic()
        await stack.until("j", "pending", within=15)
        held = monotonic() - stopped_at
        owner.send(signal.SIGCONT)
        _ = await eventually(lambda: owner.code is not None, within=10)

    assert held > 5, "it may have renewed up to a third of a lease before"
    assert owner.code == 3, "it was told that its claim is lost"
    assert "registered" not in owner.output


SHIFTED_CLOCK = """
import os, time
shift, seconds, nanoseconds = float(os.environ["CLOCK_SHIFT_SECONDS"]), time.time, time.time_ns
time.time = lambda: seconds() + shift
time.time_ns = lambda: nanoseconds() + int(shift * 1e9)
"""


@pytest.mark.slow
@requirement("clock:any:server-time-only")
@pytest.mark.parametrize("shift_seconds", [600, -600])
async def test_clocks_ten_minutes_off_reap_neither_early_nor_late(
    stacks: Stacks, tmp_path: Path, shift_seconds: int
) -> None:
    _ = (tmp_path / "sitecustomize.py").write_text(SHIFTED_CLOCK, "utf-8")
    ahead, behind = (
        {"PYTHONPATH": str(tmp_path), "CLOCK_SHIFT_SECONDS": str(shift)} for shift in (shift_seconds, -shift_seconds)
    )
    async with stacks(3) as stack:
        reaper = stack.reaper(REAPER_INTERVAL_SECONDS="0.2", **ahead)
        await reaper.ready()
        _, shown = reaper.get("/metrics")
        await stack.submit("j")
        owner = stack.owner(**behind)
        _ = await owner.claimed()
        server_ms = await stack.queue.server.now_ms()
        record = await stack.broker.get("j")
        await pass_time(stack.lease_seconds + 1)
        kept = await stack.status("j")
        owner.send(signal.SIGSTOP)
        stopped_at = monotonic()
        await stack.until("j", "pending")
        held = monotonic() - stopped_at

    success = re.search(r'last_success_timestamp_seconds{pass="reap"} (\S+)', shown)
    assert success is not None
    assert abs(float(success[1]) - server_ms / 1000) > 500, "its clock really is off"
    assert abs(record.started_at - server_ms) < 1_000
    assert abs(record.lease_until - server_ms - 3_000) < 1_500
    assert kept == "processing"
    assert 1.5 < held < 5


@requirement("death:mass:grace-starts-again")
async def test_many_owners_that_vanish_at_once_lose_their_jobs_once_after_two_graces(stacks: Stacks) -> None:
    async with stacks(60) as stack:
        reaper = stack.reaper()
        await reaper.ready()
        for number in range(6):
            await stack.submit(f"j{number}")
        owners = [stack.owner() for _ in range(6)]
        for owner in owners:
            _ = await owner.claimed()
        for owner in owners:
            owner.send(signal.SIGKILL)
        killed_at = monotonic()
        for number in range(6):
            await stack.until(f"j{number}", "pending", within=15)
        waited = monotonic() - killed_at
        reaps = [(await stack.broker.get(f"j{number}")).reaps for number in range(6)]
        counts = await stack.broker.counts()

    assert waited > 4
    assert reaps == [1] * 6
    assert (counts.pending, counts.processing) == (6, 0)


async def test_without_the_right_to_list_clients_the_lease_decides(stacks: Stacks) -> None:
    async with stacks(3) as stack:
        _ = await stack.queue.server._link.call(
            "ACL", "SETUSER", "reaper", "on", ">word", "~*", "&*", "+@all", "-client|list"
        )
        reaper = stack.reaper(REDIS_USERNAME="reaper", REDIS_PASSWORD="word", REAPER_INTERVAL_SECONDS="0.2")
        await reaper.ready()
        await stack.submit("j")
        owner = stack.owner()
        _ = await owner.claimed()
        _ = await owner.end(signal.SIGKILL)
        killed_at = monotonic()
        await stack.until("j", "pending")
        held = monotonic() - killed_at

    assert held > 1.9, "its lease was never older than a third"
    assert "client|list" in reaper.output
    assert "word" not in reaper.output.replace("REDIS_PASSWORD", "")


@pytest.mark.slow
@requirement("reap:kill:reaper-killed-anywhere")
async def test_a_reaper_killed_at_any_moment_loses_and_doubles_nothing(stacks: Stacks) -> None:
    async with stacks(1) as stack:
        for number in range(12):
            await stack.submit(f"j{number:02}")
            claim = await stack.broker.claim(Worker("w"), new_claim_id())
            assert claim is not None

        async def reaped() -> int:
            return (await stack.broker.counts()).pending

        seen = 0
        while seen < 12:
            reaper = stack.reaper(REAPER_INTERVAL_SECONDS="0.1")
            _ = await eventually(lambda seen=seen: _more_than(reaped, seen), within=15, every=0.001)
            _ = await reaper.end(signal.SIGKILL)
            seen = await reaped()
        records = [await stack.broker.get(f"j{number:02}") for number in range(12)]
        counts = await stack.broker.counts()

    assert {(record.status, record.reaps) for record in records} == {("pending", 1)}
    assert (counts.pending, counts.processing) == (12, 0)


async def _more_than(count: Callable[[], Any], seen: int) -> bool:
    return await count() > seen


async def test_sigterm_ends_it_with_0_and_in_time(stacks: Stacks) -> None:
    async with stacks(60) as stack:
        reaper = stack.reaper(LOG_FORMAT="json")
        await reaper.ready()
        asked_at = monotonic()
        code = await reaper.end(signal.SIGTERM)
        lines = [json.loads(line) for line in reaper.output.splitlines()]

    assert code == 0
    assert monotonic() - asked_at < 4
    assert [line["event"] for line in lines] == ["service.started", "service.stopped"]
    assert {"ts", "level", "service", "event", "message"} <= lines[0].keys()


async def test_it_goes_on_through_an_outage_and_says_so(stacks: Stacks, valkey: ValkeyProcess) -> None:
    async with stacks(60) as stack:
        reaper = stack.reaper(REAPER_INTERVAL_SECONDS="0.2")
        await reaper.ready()
        valkey.kill()
        _ = await eventually(lambda: reaper.get("/health/ready")[0] == 503, within=10)
        assert reaper.get("/health/live")[0] == 200
        assert "queue_unavailable" in reaper.get("/health/ready")[1]
        _ = valkey.start()
        await reaper.ready()

    assert reaper.output.count("pass.failed") <= 30, "one line a pass and problem, not one a round"
    assert 1 <= reaper.output.count("grace.started") <= 2, "once it answers and once the witness is back"


async def test_it_waits_for_a_redis_that_starts_later(stacks: Stacks, valkey: ValkeyProcess) -> None:
    valkey.kill()
    async with stacks(60) as stack:
        reaper = stack.reaper(REAPER_INTERVAL_SECONDS="0.2")
        _ = await eventually(lambda: reaper.get("/health/ready")[0] == 503, within=10)
        _ = valkey.start()
        await reaper.ready()
        await stack.submit("j")
        owner = stack.owner()
        _ = await owner.claimed()
        _ = await owner.end(signal.SIGKILL)
        await stack.until("j", "pending")


async def test_switched_off_it_stays_healthy_and_does_nothing(stacks: Stacks, valkey: ValkeyProcess) -> None:
    async with stacks(1) as stack:
        await stack.submit("j")
        claim = await stack.broker.claim(Worker("w"), new_claim_id())
        assert claim is not None
        reaper = stack.reaper(REAPER_ENABLED="false", REAPER_INTERVAL_SECONDS="0.1")
        await reaper.ready()
        assert "REAPER_ENABLED" in reaper.get("/health/live")[1]
        await pass_time(2.5)
        assert await stack.status("j") == "processing"
        valkey.kill()
        assert reaper.get("/health/ready")[0] == 200
        code = await reaper.end(signal.SIGTERM)
        _ = valkey.start()

    assert code == 0


@requirement("start:any:unknown-setting-refused")
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("REAPER_INTERVAL_SECOND", "5", "REAPER_INTERVAL_SECONDS"),
        ("REAPER_INTERVAL_SECONDS", "0", "REAPER_INTERVAL_SECONDS"),
        ("REAPER_ENABLED", "maybe", "REAPER_ENABLED"),
        ("REAPER_METRICS_PORT", "70000", "REAPER_METRICS_PORT"),
        ("MODELS_FILE", "/nowhere/models.yaml", "MODELS_FILE"),
        ("BLOBS_URL", "ftp://x", "BLOBS_URL"),
    ],
)
async def test_a_wrong_setting_stops_the_start_and_is_named(
    stacks: Stacks, variable: str, value: str, said: str
) -> None:
    async with stacks(60) as stack:
        reaper = stack.reaper(**{variable: value})
        _ = await eventually(lambda: reaper.code is not None, within=15)

        assert reaper.code == 1
        assert said in reaper.output
        assert "configuration.refused" in reaper.output
        assert "Traceback" not in reaper.output


async def test_a_port_that_is_taken_stops_the_start_and_is_named(stacks: Stacks, tmp_path: Path) -> None:
    async with stacks(60) as stack:
        first = stack.reaper()
        await first.ready()
        second = stack.reaper(REAPER_METRICS_PORT=str(first.port))
        _ = await eventually(lambda: second.code is not None, within=15)

    assert second.code == 1
    assert str(first.port) in second.output
