"""Relays and reapers whose clocks are ten minutes off: queue time is the server's (G10)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

import anyio
import pytest

from queuecore.broker import NewJob
from queuecore.clock import monotonic
from queuecore.testing.clock import eventually
from queuecore.testing.raw_http import HeldModel
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Process, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]

LEASE_SECONDS: Final = 5
LATE_MS: Final = 10_000  # what a busy machine may add; a clock of somebody else's would be 600 s off
OffBy = Callable[[int], dict[str, str]]
OFF: Final = [(600, -600), (-600, 600)]  # seconds: of the relay, of the reaper
# Python runs it before anything else. Time of day is wrong and intervals are right, as on a machine whose clock was
# never set. (libfaketime also shifts waits on condition variables, and with them the interpreter's lock.)
SITECUSTOMIZE: Final = """
import datetime, os, time
OFF = int(os.environ["CLOCK_OFF_SECONDS"])
NOW, NOW_NS, AT, GMTIME, LOCALTIME = time.time, time.time_ns, time.clock_gettime, time.gmtime, time.localtime
time.time = lambda: NOW() + OFF
time.time_ns = lambda: NOW_NS() + OFF * 1_000_000_000
time.clock_gettime = lambda clock: AT(clock) + (OFF if clock == time.CLOCK_REALTIME else 0)
time.gmtime = lambda seconds=None: GMTIME(time.time() if seconds is None else seconds)
time.localtime = lambda seconds=None: LOCALTIME(time.time() if seconds is None else seconds)
class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
datetime.datetime = Shifted
"""


@pytest.fixture
def off_by(tmp_path: Path) -> OffBy:
    """The environment of a process whose clock is off by so many seconds."""
    folder = tmp_path / "site"
    folder.mkdir()
    _ = (folder / "sitecustomize.py").write_text(SITECUSTOMIZE, "utf-8")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return lambda seconds: {"PYTHONPATH": path, "CLOCK_OFF_SECONDS": str(seconds)}


async def is_off(yard: Yard, process: Process, seconds: int) -> None:
    """The process really believes in another time."""
    started = datetime.fromisoformat((await process.said("service.started"))["ts"]).timestamp()
    assert abs(started - await yard.queue.server.now_ms() / 1000 - seconds) < 60


@pytest.mark.timeout(120)
@requirement("clock:any:server-time-only")
async def test_nothing_is_requeued_early_or_late(valkey: ValkeyProcess, tmp_path: Path, off_by: OffBy) -> None:
    async def world(number: int, relay_off: int, reaper_off: int) -> None:
        async with HeldModel() as model:
            yard = Yard(valkey, model, tmp_path / str(number), model=f"m{number}", lease_seconds=LEASE_SECONDS)  # pyright: ignore[reportArgumentType]  only its url
            await requeued_in_time(yard, model, off_by, relay_off, reaper_off)
            await yard.aclose()

    async with anyio.create_task_group() as group:  # side by side: most of it is waiting for a lease
        for number, (relay_off, reaper_off) in enumerate(OFF):
            group.start_soon(world, number, relay_off, reaper_off)


async def requeued_in_time(yard: Yard, model: HeldModel, off_by: OffBy, relay_off: int, reaper_off: int) -> None:
    reaper = await yard.ready_reaper(REAPER_INTERVAL_SECONDS="0.2", **off_by(reaper_off))
    await is_off(yard, reaper, reaper_off)

    # A live owner keeps its job for longer than a lease.
    kept = await yard.submit()
    owner = await yard.relay(faultpoint=False, **off_by(relay_off))
    await is_off(yard, owner, relay_off)
    _ = await model.asked(1)
    end = monotonic() + LEASE_SECONDS + 2
    _ = await eventually(lambda: monotonic() >= end, within=20)
    assert ((await yard.status(kept)).status, (await yard.status(kept)).reaps) == ("processing", 0)

    # A stopped one loses it when its lease is over: not before, and not much later.
    owner.signal(signal.SIGSTOP)
    stopped_at = await yard.queue.server.now_ms()
    lease_until = (await yard.status(kept)).lease_until
    assert lease_until is not None
    assert stopped_at < lease_until <= stopped_at + 1000 * LEASE_SECONDS

    async def requeued() -> bool:
        return (await yard.status(kept)).reaps == 1

    _ = await eventually(requeued, within=20)
    assert lease_until <= await yard.queue.server.now_ms() < lease_until + LATE_MS

    # A killed one loses it soon.
    victim = await yard.relay(faultpoint=False, **off_by(relay_off))
    _ = await victim.said("job.claimed")
    _ = await model.asked(2)
    victim.signal(signal.SIGKILL)

    async def requeued_again() -> bool:
        return (await yard.status(kept)).reaps == 2

    _ = await eventually(requeued_again, within=LATE_MS / 1000)
    model.go_on.set()
    assert await (await yard.relay(faultpoint=False, **off_by(relay_off))).ended() == 0
    record = await yard.finished(kept)
    assert (record.status, record.claims) == ("completed", 3)
    assert record.finished_at is not None
    assert 0 <= await yard.queue.server.now_ms() - record.finished_at < LATE_MS


@requirement("clock:any:server-time-only")
@pytest.mark.parametrize("reaper_off", [600, -600])
async def test_nothing_is_promoted_or_expired_early_or_late(yard: Yard, off_by: OffBy, reaper_off: int) -> None:
    reaper = await yard.ready_reaper(REAPER_INTERVAL_SECONDS="0.2", **off_by(reaper_off))
    await is_off(yard, reaper, reaper_off)
    now = await yard.queue.server.now_ms()
    delayed, late = await yard.prepare(), await yard.prepare()
    _ = await yard.broker.submit(NewJob(id=delayed.id, fields=delayed.fields, not_before=now + 2000))
    _ = await yard.broker.submit(NewJob(id=late.id, fields=late.fields, deadline=now + 3000))

    async def promoted() -> bool:
        return delayed.id in (await yard.operator.places()).pending

    _ = await eventually(promoted, within=20)
    assert now + 2000 <= await yard.queue.server.now_ms() < now + 2000 + LATE_MS
    expired = await yard.finished(late.id)
    assert expired.status == "expired"
    assert expired.finished_at is not None
    assert now + 3000 <= expired.finished_at < now + 3000 + LATE_MS
