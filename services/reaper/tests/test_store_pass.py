"""The store's pass: orphans go after their age, by the register's clock; whatever a job may still need stays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from queuecore.broker import NewJob, Result, Worker
from queuecore.errors import BlobUnavailable
from queuecore.job import Status, input_key, result_key
from queuecore.names import new_claim_id, new_job_id
from queuecore.storage.sweep import sweep_objects
from queuecore.testing.blobs import MemoryStore
from queuecore.testing.clock import ManualClock, eventually
from queuecore.testing.memory import MemoryQueue
from queuecore.testing.requirement import requirement
from reaper.passes.store import PAGES_A_ROUND, StoreSweep
from reaper.upkeep import Upkeep

pytestmark = pytest.mark.anyio

Running = Callable[..., AbstractAsyncContextManager[Upkeep]]


class Stand:
    def __init__(self) -> None:
        self.clock, self.store = ManualClock(), MemoryStore()
        self.queue = MemoryQueue(self.clock)
        self.broker = self.queue.broker("m")
        self.pass_ = StoreSweep(self.store, self.queue.server, orphan_min_age_seconds=3600)

    async def put(self, *keys: str) -> None:
        for key in keys:
            _ = await self.store.put(key, _nothing())

    async def submit(self) -> str:
        job_id = new_job_id()
        await self.put(input_key(job_id))
        _ = await self.broker.submit(NewJob(id=job_id, fields={"input_key": input_key(job_id)}))
        return job_id

    async def sweep_after(self, seconds: int) -> set[str]:
        self.clock.advance(seconds * 1000)
        await self.pass_.sweep()
        return set(self.store.objects)


async def _nothing() -> AsyncIterator[bytes]:
    yield b"x"


@pytest.fixture
def stand() -> Stand:
    return Stand()


async def test_an_object_without_a_record_goes_after_its_age_and_not_before(stand: Stand) -> None:
    orphan = input_key(new_job_id())
    await stand.put(orphan)

    assert await stand.sweep_after(0) == {orphan}
    assert await stand.sweep_after(3599) == {orphan}
    assert await stand.sweep_after(1) == set()


async def test_an_upload_whose_submission_comes_late_is_kept(stand: Stand) -> None:
    job_id = new_job_id()
    await stand.put(input_key(job_id))
    _ = await stand.sweep_after(0)
    _ = await stand.broker.submit(NewJob(id=job_id, fields={"input_key": input_key(job_id)}))

    assert await stand.sweep_after(7200) == {input_key(job_id)}


async def test_a_new_age_begins_when_an_object_was_needed_in_between(stand: Stand) -> None:
    job_id = await stand.submit()
    _ = await stand.broker.cancel(job_id)
    _ = await stand.sweep_after(0)
    stand.clock.advance(86_400_000)

    assert await stand.sweep_after(0) == {input_key(job_id)}, "the record went with its retention: first sight now"
    assert await stand.sweep_after(3600) == set()


@requirement("deadletter:any:kept-for-its-retention")
async def test_record_and_input_of_a_dead_letter_outlive_those_of_a_result_and_can_be_redriven(stand: Stand) -> None:
    job_id = await stand.submit()
    for _ in range(4):
        assert await stand.broker.claim(Worker("w"), new_claim_id()) is not None
        stand.clock.advance(60_001)
        _ = await stand.broker.reap()
    assert (await stand.broker.get(job_id)).status == Status.FAILED
    for day in range(29):
        assert await stand.sweep_after(86_400) == {input_key(job_id)}, f"day {day}"
    await stand.broker.redrive(job_id)

    assert await stand.sweep_after(7200) == {input_key(job_id)}


@requirement("result:complete:winners-bytes")
async def test_the_losers_result_goes_and_the_winners_stays(stand: Stand) -> None:
    job_id = await stand.submit()
    loser = await stand.broker.claim(Worker("w"), new_claim_id())
    stand.clock.advance(60_001)
    _ = await stand.broker.reap()
    winner = await stand.broker.claim(Worker("w"), new_claim_id())
    assert loser is not None
    assert winner is not None
    keys = [result_key(job_id, claim.fence, claim.claim_id) for claim in (loser, winner)]
    await stand.put(*keys)
    _ = await stand.broker.complete(winner, Result(keys[1], 1, "text/plain", "00"))
    _ = await stand.sweep_after(0)

    assert await stand.sweep_after(3600) == {input_key(job_id), keys[1]}


async def test_what_is_not_ours_is_left_alone(stand: Stand) -> None:
    await stand.put("readme.txt", "backup/2026/file")
    _ = await stand.sweep_after(0)

    assert await stand.sweep_after(7200) == {"readme.txt", "backup/2026/file"}


async def test_a_round_is_bounded_and_the_next_one_goes_on(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    from reaper.passes import store

    pages: list[str] = []

    async def page(*arguments: object, cursor: str, **options: object) -> object:
        pages.append(cursor)
        return await sweep_objects(*arguments, cursor=cursor, limit=2, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(store, "sweep_objects", page)
    keys = sorted(input_key(new_job_id()) for _ in range(2 * PAGES_A_ROUND + 3))
    await stand.put(*keys)
    await stand.pass_.sweep()
    assert len(pages) == PAGES_A_ROUND
    await stand.pass_.sweep()
    assert pages[PAGES_A_ROUND] == keys[2 * PAGES_A_ROUND - 1]
    stand.clock.advance(3_600_000)
    for _ in range(4):
        await stand.pass_.sweep()

    assert stand.store.objects == {}


async def test_a_store_that_is_away_makes_the_reaper_unready_and_stops_nothing_else(running: Running) -> None:
    stand = Stand()

    async def away(**_: object) -> int:
        raise BlobUnavailable("x", "no answer")

    stand.store.abort_unfinished = away  # pyright: ignore[reportAttributeAccessIssue]
    stand.broker.specification.state.pending.append("gone")
    async with running([stand.broker], stand.queue.server, stand.queue.signals, store=stand.store) as upkeep:
        _ = await eventually(lambda: not stand.broker.specification.state.pending)
        _ = await eventually(lambda: list(upkeep.health().detail) == ["store all"])
        assert upkeep.health().live
        assert not upkeep.health().ready
        assert not upkeep.grace.holds("m", 10**9), "the queue did not go away"
