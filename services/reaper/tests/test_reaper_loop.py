"""Rounds, their failures and their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from queuecore.clock import monotonic
from queuecore.errors import BrokerUnavailable, OutcomeUnknown
from queuecore.redis.client import PermissionMissing
from queuecore.testing.clock import eventually
from reaper.grace import RestartGrace
from reaper.ledger import BROKEN_AFTER_SECONDS, Ledger
from reaper.loop import Loops, LoopsBroken, Pass

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """Loops over one pass whose parts tests write."""

    def __init__(self, **parts: Callable[[], object]) -> None:
        self.clock = Clock()
        self.ledger = Ledger(0)
        self.grace = RestartGrace({"m": 10})
        _ = self.grace.connected("run:1", 0)
        self.calls: list[str] = []

        def work(name: str, act: Callable[[], object]) -> Callable[[], object]:
            async def one() -> None:
                self.calls.append(name)
                _ = act()

            return one

        self.one = Pass("bench", 0.01, {name: work(name, act) for name, act in parts.items()}, asks=True)  # pyright: ignore[reportArgumentType]
        self.loops = Loops([self.one], self.ledger, self.grace, clock=self.clock)

    async def idle(self) -> None:
        self.calls.append("idle")


def fail(error: Exception) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


def good() -> object:
    return None


async def test_one_part_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(a=fail(BrokerUnavailable("away")), b=fail(KeyError("a bug")), c=good)
    with caplog.at_level(logging.ERROR):
        assert not await bench.loops.run_once(bench.one)

    assert bench.calls == ["a", "b", "c"]
    assert bench.ledger.health(0).detail == {
        "bench a": "queue_unavailable: away",
        "bench b": "KeyError: 'a bug'",
    }
    assert [bool(record.exc_info) for record in caplog.records] == [False, True], "a bug shows where it is"


async def test_a_failure_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    problems: list[Exception] = [BrokerUnavailable("away")] * 3

    def act() -> object:
        if problems:
            raise problems.pop()
        return None

    bench = Bench(a=act)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            _ = await bench.loops.run_once(bench.one)

    assert [getattr(record, "event", None) for record in caplog.records] == [
        "pass.failed",
        "grace.started",
        "pass.restored",
    ]


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), OutcomeUnknown("cut")])
async def test_an_outage_holds_the_reaping_for_one_lease_after_its_end(error: Exception) -> None:
    bench = Bench(a=fail(error), b=good)
    bench.clock.now = 100
    _ = await bench.loops.run_once(bench.one)

    assert bench.grace.holds("m", 109)
    assert not bench.grace.holds("m", 110)


async def test_a_pass_that_did_nothing_does_not_end_an_outage() -> None:
    bench = Bench(a=fail(BrokerUnavailable("away")))
    _ = await bench.loops.run_once(bench.one)
    _ = await bench.loops.run_once(Pass("bench", 1, {"a": bench.idle}))

    assert bench.grace.holds("m", 10**9)


async def test_a_permission_that_is_missing_is_no_outage() -> None:
    bench = Bench(a=fail(PermissionMissing("client|list")), b=good)
    _ = await bench.loops.run_once(bench.one)

    assert not bench.grace.holds("m", 0)


async def test_loops_that_stay_broken_end_the_process() -> None:
    bench = Bench(a=fail(BrokerUnavailable("away")))

    async def run() -> None:
        await bench.loops.run(asyncio.Event())

    task = asyncio.create_task(run())
    _ = await eventually(lambda: len(bench.calls) > 3)
    assert not task.done()
    bench.clock.now = BROKEN_AFTER_SECONDS + 1

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(task, 5)
    assert caught.group_contains(LoopsBroken)


async def test_stop_ends_a_pass_that_hangs() -> None:
    bench = Bench(a=good)
    stop, hanging = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        hanging.set()
        _ = await asyncio.Event().wait()

    loops = Loops([Pass("hang", 1, {"a": hang})], Ledger(monotonic()), bench.grace)
    task = asyncio.create_task(loops.run(stop))
    _ = await hanging.wait()
    stop.set()

    await asyncio.wait_for(task, 6)
