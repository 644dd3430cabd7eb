from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from queuecore.errors import BlobUnavailable
from queuecore.job import JobRecord, Status, input_key, result_key
from queuecore.names import new_job_id
from queuecore.storage.sweep import Sweep, SweptObject, sweep_objects
from queuecore.testing.blobs import MemoryStore
from queuecore.testing.clock import ManualClock

pytestmark = pytest.mark.anyio

MIN_AGE_MS = 3_600_000
JOB = new_job_id()


class Register:
    """`FirstSeen` over a clock that the test moves."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.seen: dict[str, int] = {}

    async def first_seen(self, keys: Sequence[str]) -> Mapping[str, int]:
        return {key: self._clock() - self.seen.setdefault(key, self._clock()) for key in keys}

    async def forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            _ = self.seen.pop(key, None)


class Yard:
    """A store, records and a clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.register = Register(self.clock)
        self.records: dict[str, JobRecord] = {}
        self.unknown: set[str] = set()
        self.asked: list[Sequence[str]] = []

    def job(self, status: Status = Status.PROCESSING, job_id: str = JOB, **fields: Any) -> None:
        self.records[job_id] = JobRecord(id=job_id, status=status, input_key=input_key(job_id), **fields)

    def put(self, *keys: str) -> None:
        self.store.objects.update(dict.fromkeys(keys, b"x"))

    async def states(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        self.asked.append(job_ids)
        return {job_id: self.records.get(job_id) for job_id in job_ids if job_id not in self.unknown}

    async def sweep(self, cursor: str = "", limit: int = 1_000) -> Sweep:
        return await sweep_objects(
            self.store, self.states, self.register, min_age_ms=MIN_AGE_MS, cursor=cursor, limit=limit
        )

    async def sweep_twice(self) -> set[str]:
        """What is left after a sweep and, the age later, another."""
        _ = await self.sweep()
        self.clock.advance(MIN_AGE_MS)
        _ = await self.sweep()
        return set(self.store.objects)


@pytest.fixture
def yard() -> Yard:
    return Yard()


async def test_an_object_without_a_record_goes_when_it_was_seen_so_for_the_age(yard: Yard) -> None:
    yard.put(input_key(JOB))
    assert await yard.sweep() == Sweep("", examined=1, waiting=1, deleted=())
    yard.clock.advance(MIN_AGE_MS - 1)
    assert await yard.sweep() == Sweep("", examined=1, waiting=1, deleted=())
    yard.clock.advance(1)
    assert await yard.sweep() == Sweep("", 1, 0, (SweptObject(input_key(JOB), "unrecorded"),))
    assert yard.store.objects == {}
    assert yard.register.seen == {}


async def test_a_submission_under_way_starts_the_count_anew_when_its_record_comes_and_goes(yard: Yard) -> None:
    yard.put(input_key(JOB))
    _ = await yard.sweep()
    yard.job(Status.PENDING)
    yard.clock.advance(MIN_AGE_MS)
    assert (await yard.sweep()).waiting == 0
    yard.records.clear()
    assert (await yard.sweep()).deleted == ()
    yard.clock.advance(MIN_AGE_MS - 1)
    assert (await yard.sweep()).deleted == ()


@pytest.mark.parametrize("status", list(Status))
async def test_an_input_lives_as_long_as_its_record(yard: Yard, status: Status) -> None:
    yard.put(input_key(JOB))
    yard.job(status, fence=7, claim_id="c")
    assert await yard.sweep_twice() == {input_key(JOB)}


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.EXPIRED])
async def test_of_a_finished_jobs_results_only_the_verdicts_one_stays(yard: Yard, status: Status) -> None:
    winner, loser, late = (result_key(JOB, fence, claim) for fence, claim in ((2, "w"), (1, "l"), (3, "x")))
    yard.put(winner, loser, late)
    yard.job(status, fence=3, claim_id="x", result_key=winner)
    assert await yard.sweep_twice() == {winner}


async def test_a_job_that_ended_without_a_result_keeps_none(yard: Yard) -> None:
    yard.put(result_key(JOB, 1, "c"))
    yard.job(Status.CANCELLED, fence=1, claim_id="c")
    assert await yard.sweep_twice() == set()


@pytest.mark.parametrize("status", [Status.PROCESSING, Status.PENDING])
async def test_of_a_live_jobs_results_those_of_older_claims_go(yard: Yard, status: Status) -> None:
    """Pending keeps its last claim's: `complete` is still accepted while nobody else has claimed the job."""
    current = result_key(JOB, 3, "now")
    yard.put(result_key(JOB, 2, "old"), result_key(JOB, 10, "ahead"), result_key(JOB, 3, "twin"), current)
    yard.job(status, fence=3, claim_id="now")
    assert await yard.sweep_twice() == {current, result_key(JOB, 10, "ahead")}


async def test_fences_are_compared_as_numbers(yard: Yard) -> None:
    yard.put(result_key(JOB, 9, "old"))
    yard.job(Status.PROCESSING, fence=10, claim_id="now")
    assert await yard.sweep_twice() == set()


async def test_a_stages_input_is_kept_although_it_is_an_older_claims_result(yard: Yard) -> None:
    before = result_key(JOB, 1, "first-stage")
    yard.put(before)
    yard.records[JOB] = JobRecord(id=JOB, status=Status.PROCESSING, fence=2, claim_id="b", input_key=before)
    assert await yard.sweep_twice() == {before}


async def test_what_is_not_ours_is_left_alone(yard: Yard) -> None:
    foreign = {"readme.txt", "backup/2026/dump", JOB, f"{JOB.upper()}/input", "not-an-id/input"}
    yard.put(*foreign)
    assert await yard.sweep_twice() == foreign


async def test_an_object_of_a_job_that_is_neither_input_nor_result_lives_with_its_record(yard: Yard) -> None:
    other = {f"{JOB}/notes", f"{JOB}/x-y/result", f"{JOB}/1-c/log", f"{JOB}/1-/result"}
    yard.put(*other)
    yard.job(Status.COMPLETED)
    assert await yard.sweep_twice() == other
    yard.records.clear()
    assert await yard.sweep_twice() == set()


async def test_a_job_whose_state_is_not_known_is_left_alone(yard: Yard) -> None:
    yard.put(input_key(JOB))
    yard.unknown.add(JOB)
    assert await yard.sweep_twice() == {input_key(JOB)}


async def test_a_killed_processs_probe_goes(yard: Yard) -> None:
    yard.put("check/0123456789abcdef")
    assert await yard.sweep_twice() == set()


async def test_a_pass_is_bounded_and_goes_on_where_it_stopped(yard: Yard) -> None:
    keys = sorted(input_key(new_job_id()) for _ in range(25))
    yard.put(*keys)
    cursor, seen = "", 0
    for expected in (10, 10, 5):
        swept = await yard.sweep(cursor, limit=10)
        cursor, seen = swept.cursor, seen + swept.examined
        assert swept.examined == expected
    assert (cursor, seen) == ("", 25)
    assert [len(ids) for ids in yard.asked] == [10, 10, 5]
    yard.clock.advance(MIN_AGE_MS)
    assert len((await yard.sweep(limit=10)).deleted) == 10
    assert sorted(yard.store.objects) == keys[10:]


async def test_a_full_last_page_is_followed_by_an_empty_one(yard: Yard) -> None:
    yard.put(*(input_key(new_job_id()) for _ in range(10)))
    first = await yard.sweep(limit=10)
    assert first.cursor
    assert await yard.sweep(first.cursor, limit=10) == Sweep("", 0, 0, ())


async def test_an_empty_store_asks_nobody(yard: Yard) -> None:
    assert await yard.sweep() == Sweep("", 0, 0, ())
    assert yard.asked == []


async def test_a_store_that_fails_in_the_middle_ends_the_pass_and_the_next_one_finishes_it(yard: Yard) -> None:
    class Failing(MemoryStore):
        broken = True

        async def delete(self, key: str) -> None:
            if self.broken and len(self.objects) == 1:
                raise BlobUnavailable(key, "away")
            await super().delete(key)

    yard.store = store = Failing()
    yard.put(input_key(JOB), result_key(JOB, 1, "c"))
    _ = await yard.sweep()
    yard.clock.advance(MIN_AGE_MS)
    with pytest.raises(BlobUnavailable):
        _ = await yard.sweep()
    assert len(store.objects) == 1
    store.broken = False
    assert len((await yard.sweep()).deleted) == 1


async def test_two_sweepers_at_once_do_no_harm(yard: Yard) -> None:
    class Racing(MemoryStore):
        """Another sweeper deletes everything between the listing and our deletes."""

        async def scan(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Any]:
            async for entry in super().scan(prefix, after=after):
                yield entry
            if yard.clock() > ManualClock()():
                self.objects.clear()

    yard.store = Racing()
    yard.put(input_key(JOB))
    assert await yard.sweep_twice() == set()
