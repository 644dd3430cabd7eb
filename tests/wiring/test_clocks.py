"""Relays and reapers whose clocks are ten minutes off: queue time is the server's (G10)."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest

from queuecore.broker import NewJob
from queuecore.clock import monotonic
from queuecore.testing.clock import eventually
from queuecore.testing.raw_http import HeldModel
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Process, Yard

# Debian's package `faketime`: the variant for programs with threads.
_LIBRARIES: Final = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.skipif(not _LIBRARIES, reason="needs libfaketime: install the package `faketime`"),
]

LEASE_SECONDS: Final = 5
OFF: Final = [("+600", "-600"), ("-600", "+600")]  # seconds: of the relay, of the reaper


def off_by(seconds: str) -> dict[str, str]:
    """Time of day is wrong, and intervals are right, as on a machine whose clock was never set."""
    return {"LD_PRELOAD": str(_LIBRARIES[0]), "FAKETIME": seconds, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@pytest.fixture
async def short(valkey: ValkeyProcess, model: HeldModel, tmp_path: Path) -> AsyncIterator[Yard]:
    made = Yard(valkey, model, tmp_path, lease_seconds=LEASE_SECONDS)  # pyright: ignore[reportArgumentType]  only its url
    await made.flush()
    yield made
    await made.aclose()


async def is_off(yard: Yard, process: Process, seconds: str) -> None:
    """The process really believes in another time."""
    started = datetime.fromisoformat((await process.said("service.started"))["ts"]).timestamp()
    assert abs(started - await yard.queue.server.now_ms() / 1000 - int(seconds)) < 60


@requirement("clock:any:server-time-only")
@pytest.mark.parametrize(("relay_off", "reaper_off"), OFF)
async def test_nothing_is_requeued_early_or_late(
    short: Yard, model: HeldModel, relay_off: str, reaper_off: str
) -> None:
    reaper = await short.ready_reaper(REAPER_INTERVAL_SECONDS="0.2", **off_by(reaper_off))
    await is_off(short, reaper, reaper_off)

    # A live owner keeps its job for longer than a lease.
    kept = await short.submit()
    owner = await short.relay(faultpoint=False, **off_by(relay_off))
    await is_off(short, owner, relay_off)
    _ = await model.asked(1)
    end = monotonic() + 2 * LEASE_SECONDS
    _ = await eventually(lambda: monotonic() >= end, within=20)
    assert ((await short.status(kept)).status, (await short.status(kept)).reaps) == ("processing", 0)

    # A stopped one loses it when its lease is over: not before, and not much later.
    owner.signal(signal.SIGSTOP)
    stopped_at = await short.queue.server.now_ms()
    lease_until = (await short.status(kept)).lease_until
    assert lease_until is not None
    assert stopped_at < lease_until <= stopped_at + 1000 * LEASE_SECONDS

    async def requeued() -> bool:
        return (await short.status(kept)).reaps == 1

    _ = await eventually(requeued, within=20)
    assert lease_until <= await short.queue.server.now_ms() < lease_until + 3000

    # A killed one loses it to the death notice.
    victim = await short.relay(faultpoint=False, **off_by(relay_off))
    _ = await victim.said("job.claimed")
    _ = await model.asked(2)
    victim.signal(signal.SIGKILL)
    killed_at = monotonic()

    async def requeued_again() -> bool:
        return (await short.status(kept)).reaps == 2

    _ = await eventually(requeued_again, within=20)
    assert monotonic() - killed_at < LEASE_SECONDS
    model.go_on.set()
    assert await (await short.relay(faultpoint=False, **off_by(relay_off))).ended() == 0
    record = await short.finished(kept)
    assert (record.status, record.claims) == ("completed", 3)
    assert record.finished_at is not None
    assert 0 <= await short.queue.server.now_ms() - record.finished_at < 10_000


@requirement("clock:any:server-time-only")
@pytest.mark.parametrize("reaper_off", ["+600", "-600"])
async def test_nothing_is_promoted_or_expired_early_or_late(short: Yard, reaper_off: str) -> None:
    reaper = await short.ready_reaper(REAPER_INTERVAL_SECONDS="0.2", **off_by(reaper_off))
    await is_off(short, reaper, reaper_off)
    now = await short.queue.server.now_ms()
    delayed, late = await short.prepare(), await short.prepare()
    _ = await short.broker.submit(NewJob(id=delayed.id, fields=delayed.fields, not_before=now + 2000))
    _ = await short.broker.submit(NewJob(id=late.id, fields=late.fields, deadline=now + 3000))

    async def promoted() -> bool:
        return delayed.id in (await short.operator.places()).pending

    _ = await eventually(promoted, within=20)
    assert now + 2000 <= await short.queue.server.now_ms() < now + 5000
    expired = await short.finished(late.id)
    assert expired.status == "expired"
    assert expired.finished_at is not None
    assert now + 3000 <= expired.finished_at < now + 6000
