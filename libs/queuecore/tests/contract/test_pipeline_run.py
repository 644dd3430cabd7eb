"""A pipeline's run over its stages: the same over memory and Redis (seed 004, design §10.4)."""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest

from queuecore.broker import Breaker, Claim, Failure, NewJob, Result, Worker
from queuecore.errors import ClaimLost, WrongState
from queuecore.job import JobRecord, Status, Step, result_key, run_fields
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement
from queuecore.testing.stands import Stands

KINDS: Final = ["memory-stage", "stage-resp2", "stage-resp3", "stage-redis7-resp2", "stage-redis7-resp3"]
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("stands", KINDS, indirect=True)]
STAGES: Final = ("store", "chunk", "embed")
PLAN: Final = tuple(Step(stage, f"do-{stage}", f"/v1/{stage}", "raw") for stage in STAGES)
RETRY: Final = Failure("inference_error", "busy", 503, retry_in_ms=2_000)


class Line(NamedTuple):
    """The stages of one pipeline."""

    store: Stand
    chunk: Stand
    embed: Stand

    async def submit(self, job_id: str = "r1", **options: object) -> None:
        fields = {"tenant": "t", "input_key": f"{job_id}/input", "input_size": "9"} | run_fields("ingest", PLAN)
        _ = await self.store.broker.submit(NewJob(id=job_id, fields=fields, priority="normal", **options))  # pyright: ignore[reportArgumentType]

    async def get(self, job_id: str = "r1") -> JobRecord:
        return await self.store.broker.get(job_id)

    async def places(self) -> list[str]:
        """Who waits and, with a star, who is processed, stage by stage."""
        found = [await stand.operator.places() for stand in self]
        return [" ".join([*one.pending, *(f"{job_id}*" for job_id in one.processing)]) for one in found]


@pytest.fixture
def line(stands: Stands) -> Line:
    return Line(*[stands.make(model=stage) for stage in STAGES])


async def claim(stand: Stand, claim_id: str = "c1") -> Claim:
    found = await stand.broker.claim(Worker("w", "run:7"), claim_id)
    assert found is not None
    return found


def result_of(claimed: Claim, size: int = 5) -> Result:
    key = result_key(claimed.job_id, claimed.fence, claimed.claim_id)
    return Result(key, size, "text/plain", "0" * 64, 200)


async def work(stand: Stand, claim_id: str) -> Status:
    claimed = await claim(stand, claim_id)
    return await stand.broker.complete(claimed, result_of(claimed))


async def die(stand: Stand, claim_id: str) -> str:
    _ = await claim(stand, claim_id)
    stand.clock.advance(60_001)
    return (await stand.broker.reap())[0].outcome


@requirement("pipeline:complete:output-is-the-next-input")
async def test_what_one_stage_answers_is_the_next_ones_input(line: Line) -> None:
    await line.submit()
    line.store.clock.advance(10)
    first = await claim(line.store)
    assert (first.record.pipeline, first.record.stage, first.record.inference_url) == ("ingest", "store", "/v1/store")
    line.store.clock.advance(20)
    assert await line.store.broker.complete(first, result_of(first)) is Status.PENDING
    now = line.store.clock.now_ms

    record = await line.get()
    assert await line.places() == ["", "r1", ""]
    assert (record.status, record.model, record.stage) == ("pending", "chunk", "chunk")
    assert (record.operation, record.inference_url, record.request) == ("do-chunk", "/v1/chunk", "raw")
    assert (record.input_key, record.input_size, record.input_content_type) == ("r1/1-c1/result", 5, "text/plain")
    assert (record.claims, record.reaps, record.failures, record.fence) == (0, 0, 0, 1)
    assert (record.result_key, record.http_status, record.claim_id) == ("", None, "")
    (past,) = record.history
    assert (past.stage, past.queued_at, past.started_at, past.finished_at) == ("store", now - 30, now - 20, now)
    assert (past.attempts, past.result_key, past.result_size) == (1, "r1/1-c1/result", 5)

    second = await claim(line.chunk, "c2")
    assert (second.fence, second.record.queue_wait_ms) == (2, 0), "the fence goes on growing"
    assert await line.chunk.broker.complete(second, result_of(second)) is Status.PENDING
    assert await work(line.embed, "c3") is Status.COMPLETED
    record = await line.get()
    assert (record.status, record.result_key, record.model) == ("completed", "r1/3-c3/result", "embed")
    assert [one.stage for one in record.history] == ["store", "chunk"]
    assert [(await stand.broker.counts()).outbox for stand in line] == [0, 0, 1], "one event, at the run's end"
    for stand in line:
        assert await stand.operator.residue() == []


@requirement("unknown:complete:repeat-at-a-later-stage")
async def test_a_repeated_complete_answers_the_same_and_moves_nothing(line: Line) -> None:
    await line.submit()
    first = await claim(line.store)
    for _ in range(2):
        assert await line.store.broker.complete(first, result_of(first)) is Status.PENDING
    assert await line.places() == ["", "r1", ""]
    _ = await work(line.chunk, "c2")
    assert await line.store.broker.complete(first, result_of(first)) is Status.PENDING, "two stages later, too"
    assert await line.places() == ["", "", "r1"]
    for verb in (line.store.broker.renew, line.store.broker.release):
        with pytest.raises(ClaimLost):
            _ = await verb(first)
    with pytest.raises(ClaimLost):
        _ = await line.store.broker.fail(first, RETRY)


async def test_an_owner_that_was_reaped_completes_while_nobody_else_has_it(line: Line) -> None:
    await line.submit()
    stale = await claim(line.store)
    line.store.clock.advance(60_001)
    _ = await line.store.broker.reap()
    assert await line.store.broker.complete(stale, result_of(stale)) is Status.PENDING
    assert await line.places() == ["", "r1", ""]


@requirement("pipeline:reap:counters-of-a-stage")
async def test_each_stage_has_its_own_counters_and_its_own_cap(line: Line) -> None:
    await line.submit()
    for number in range(3):
        assert await die(line.store, f"s{number}") == "requeued"
    assert await work(line.store, "s9") is Status.PENDING
    for number in range(3):
        assert await die(line.chunk, f"c{number}") == "requeued"
    assert await die(line.chunk, "c9") == "deadletter"
    record = await line.get()
    assert (record.status, record.error_code, record.reaps, record.stage) == ("failed", "worker_lost", 4, "chunk")
    assert (record.history[0].reaps, record.history[0].attempts) == (3, 4)
    assert [(await stand.broker.counts()).deadletter for stand in line] == [0, 1, 0]
    assert (await line.chunk.broker.counts()).outbox == 1


@requirement("pipeline:reap:base-priority-10")
async def test_what_a_dead_worker_left_goes_ahead_and_what_was_given_back_does_not(line: Line) -> None:
    for name in ("a", "b", "c"):
        await line.submit(name)
        line.store.clock.advance(1_000)
    assert (await claim(line.store, "c1")).job_id == "a"
    given_back = await claim(line.store, "c2")
    assert given_back.job_id == "b"
    _ = await line.store.broker.release(given_back)
    assert await line.places() == ["b c a*", "", ""]
    line.store.clock.advance(60_001)
    _ = await line.store.broker.reap()
    await line.submit("d")
    assert await line.places() == ["a b c d", "", ""]
    again = await claim(line.store, "c3")
    _ = await line.store.broker.release(again)
    assert await line.places() == ["a b c d", "", ""], "released to the place it had"
    _ = await work(line.store, "c4")
    await line.submit("e")
    _ = await work(line.store, "c5")
    assert (await line.places())[1] == "a b", "the next stage gives it a fresh score"


async def test_a_stage_tries_again_with_backoff_and_then_it_is_a_dead_letter(line: Line) -> None:
    await line.submit()
    assert await line.store.broker.fail(await claim(line.store), RETRY) is Status.PENDING
    line.store.clock.advance(2_000)
    assert await line.store.broker.promote() == 1
    assert await work(line.store, "c2") is Status.PENDING
    record = await line.get()
    assert (record.error_code, record.failures, record.history[0].failures) == ("", 0, 1), "told by the history alone"
    final = RETRY._replace(retry_in_ms=None)
    assert await line.chunk.broker.fail(await claim(line.chunk, "c3"), final) is Status.FAILED
    assert [one.id for one in await line.chunk.broker.deadletters()] == ["r1"]
    record = await line.get()
    assert record.expires_at is not None
    assert record.finished_at is not None
    assert record.expires_at - record.finished_at == line.chunk.limits.retention.deadletter_ms


@requirement("pipeline:redrive:resumes-where-it-failed")
async def test_redrive_resumes_at_the_stage_that_failed(line: Line) -> None:
    await line.submit()
    _ = await work(line.store, "c1")
    final = RETRY._replace(retry_in_ms=None)
    _ = await line.chunk.broker.fail(await claim(line.chunk, "c2"), final)
    line.store.clock.advance(86_400_000 * 2)
    await line.store.broker.redrive("r1")  # whichever stage's queue is asked
    record = await line.get()
    assert (record.status, record.generation, record.stage, record.failures) == ("pending", 2, "chunk", 0)
    assert (record.input_key, [one.stage for one in record.history]) == ("r1/1-c1/result", ["store"])
    assert await line.places() == ["", "r1", ""]
    assert await line.chunk.broker.expire() == [], "it waits since now, however old it is"
    assert await work(line.chunk, "c3") is Status.PENDING
    assert await work(line.embed, "c4") is Status.COMPLETED
    events = [one.event_id for stand in line for one in await stand.broker.events("x")]
    assert events == ["r1:1", "r1:2"]
    with pytest.raises(WrongState):
        await line.chunk.broker.redrive("r1", generation=2)


@requirement("pipeline:cancel:whole-run")
async def test_cancel_finds_the_run_wherever_it_stands(line: Line) -> None:
    for name in ("waits", "runs"):
        await line.submit(name)
    _ = await work(line.store, "c1")
    _ = await work(line.store, "c2")
    assert await line.store.broker.cancel("waits") == (Status.CANCELLED, False), "asked of a stage that it has left"
    running = await claim(line.chunk, "c3")
    assert running.job_id == "runs"
    assert await line.store.broker.cancel("runs") == (Status.PROCESSING, False)
    assert (await line.chunk.broker.renew(running)).cancel_requested
    assert await line.chunk.broker.complete(running, result_of(running)) is Status.CANCELLED, "it goes no further"
    assert await line.places() == ["", "", ""]
    assert [(await stand.broker.counts()).outbox for stand in line] == [0, 2, 0]


@requirement("pipeline:expire:deadline-of-the-run")
async def test_the_deadline_is_the_whole_runs(line: Line) -> None:
    await line.submit(deadline=line.store.clock.now_ms + 5_000)
    _ = await work(line.store, "c1")
    line.store.clock.advance(4_000)
    claimed = await claim(line.chunk, "c2")
    assert claimed.record.execute_until == line.store.clock.now_ms + 1_000
    _ = await line.chunk.broker.complete(claimed, result_of(claimed))
    line.store.clock.advance(1_000)
    assert await line.store.broker.expire() == []
    assert await line.embed.broker.expire() == ["r1"]
    record = await line.get()
    assert (record.status, record.error_code, record.stage) == ("expired", "deadline_exceeded", "embed")


@requirement("pipeline:any:ordering-key-of-the-run")
async def test_the_next_run_of_a_key_begins_when_the_whole_run_is_over(line: Line) -> None:
    for name in ("a", "b"):
        await line.submit(name, ordering_key="k")
    _ = await work(line.store, "c1")
    _ = await work(line.chunk, "c2")
    assert await line.places() == ["", "", "a"]
    assert (await line.store.broker.counts()).ordered == 1
    assert await line.store.broker.claim(Worker("w"), "c3") is None
    _ = await work(line.embed, "c4")
    assert await line.places() == ["b", "", ""]
    assert (await line.store.broker.counts()).ordered == 0


async def test_a_redriven_run_waits_behind_its_key_at_the_stage_where_it_failed(line: Line) -> None:
    await line.submit("a", ordering_key="k")
    await line.submit("b", ordering_key="k")
    _ = await work(line.store, "c1")
    _ = await line.chunk.broker.fail(await claim(line.chunk, "c2"), RETRY._replace(retry_in_ms=None))
    assert await line.places() == ["b", "", ""], "its verdict let the next one in"
    await line.chunk.broker.redrive("a")
    line.store.clock.advance(31_000)
    for _ in range(2):
        assert [await stand.broker.reconcile() for stand in line] == [[], [], []]
    assert await line.places() == ["b", "", ""]
    assert await line.store.broker.cancel("b") == (Status.CANCELLED, False)
    assert await line.places() == ["", "a", ""]


async def test_one_paused_stage_holds_what_comes_to_it_and_nothing_else(line: Line) -> None:
    await line.submit("a")
    await line.chunk.broker.pause()
    _ = await work(line.store, "c1")
    await line.submit("b")
    assert await line.places() == ["b", "", ""]
    assert (await line.chunk.operator.places()).paused == ["a"]
    assert await work(line.store, "c2") is Status.PENDING
    await line.chunk.broker.resume()
    assert await line.places() == ["", "a b", ""]


async def test_the_breaker_of_one_stage_pauses_that_stage(line: Line) -> None:
    await line.submit("a")
    _ = await work(line.store, "c1")
    broken = RETRY._replace(infrastructure=True, breaker=Breaker(1, 10_000))
    _ = await line.chunk.broker.fail(await claim(line.chunk, "c2"), broken)
    assert [(await stand.broker.counts()).paused_reason for stand in line] == ["", "breaker", ""]


async def test_a_run_lost_from_its_stages_queue_comes_back_there(line: Line) -> None:
    await line.submit()
    _ = await work(line.store, "c1")
    await line.chunk.operator.remove_waiting("r1")
    assert [one.outcome for one in await line.chunk.broker.reconcile()] == ["waiting"]
    line.store.clock.advance(30_001)
    assert await line.store.broker.reconcile() == []
    assert [one.outcome for one in await line.chunk.broker.reconcile()] == ["requeued"]
    assert await line.places() == ["", "r1", ""]


async def test_an_entry_of_a_stage_that_the_run_has_left_runs_nothing(line: Line) -> None:
    await line.submit()
    _ = await work(line.store, "c1")
    await line.store.operator.push_processing("r1")
    current = await claim(line.chunk, "c2")
    line.store.clock.advance(60_001)
    outcomes = [one.outcome for one in await line.store.broker.reap()]
    assert outcomes == ["dropped"]
    assert await line.chunk.broker.complete(current, result_of(current)) is Status.PENDING
    assert await line.places() == ["", "", "r1"]


async def test_a_foreign_verdict_ends_only_the_last_stage(line: Line) -> None:
    await line.submit()
    with pytest.raises(ClaimLost):
        _ = await line.store.broker.complete_foreign("r1", Status.COMPLETED, result_key="r1/x")
    assert await line.places() == ["r1", "", ""]


async def test_a_finished_run_can_be_erased_through_any_stage(line: Line) -> None:
    await line.submit()
    for stand, claim_id in zip(line, ("c1", "c2", "c3"), strict=True):
        _ = await work(stand, claim_id)
    await line.store.broker.erase("r1")
    for stand in line:
        assert (await stand.broker.jobs()).jobs == []
