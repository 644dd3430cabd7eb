"""From the first look at the queue to the exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
import pytest

from queuecore.broker import Broker, Worker
from queuecore.clock import monotonic
from queuecore.config import Retries
from queuecore.errors import BrokerUnavailable, ConfigurationError, OutcomeUnknown
from queuecore.names import new_claim_id
from queuecore.retry import Backoff
from queuecore.testing.clock import eventually
from queuecore.testing.requirement import requirement
from relay import attempt, loop, patience
from relay.attempt import ExitCode
from relay.readiness import ModelNotReady

pytestmark = pytest.mark.anyio
Bench = Any  # conftest's


class FaultyBroker:
    """The broker below, whose verbs fail as a test says: (verb, before or after it ran, error)."""

    def __init__(self, below: Broker, *faults: tuple[str, str, Exception]) -> None:
        self._below = below
        self._faults = list(faults)
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        below: Any = getattr(self._below, name)
        if name in {"model", "limits"}:
            return below

        async def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            fault = next((one for one in self._faults if one[0] == name), None)
            if fault:
                self._faults.remove(fault)
            if fault and fault[1] == "before":
                raise fault[2]
            value = await below(*arguments, **options)
            if fault:
                raise fault[2]
            return value

        return call


# -- verdicts and ends --------------------------------------------------------------------------------------------


@requirement("relay:exit:code-says-what-happened")
async def test_a_job_becomes_a_result_with_one_verdict_and_one_event(bench: Bench) -> None:
    job_id = await bench.submit(b"input")
    assert await bench.run() is ExitCode.DONE

    record = await bench.record(job_id)
    assert record.status == "completed"
    assert record.result_key == f"{job_id}/{record.fence}-{record.claim_id}/result"
    assert await bench.result(job_id) == b"result"
    assert record.result_content_type == "text/plain"
    assert [(event.job_id, event.status) for event in await bench.events()] == [(job_id, "completed")]
    assert (record.claims, record.reaps, record.failures) == (1, 0, 0)
    counts = await bench.broker.counts()
    assert (counts.pending, counts.processing, counts.delayed, counts.paused) == (0, 0, 0, 0)


@requirement("relay:exit:code-says-what-happened")
async def test_an_empty_queue_ends_the_process_with_0_after_the_pop_timeout(bench: Bench) -> None:
    began = monotonic()
    assert await bench.run(queue_pop_timeout_seconds=0.3) is ExitCode.DONE
    assert 0.3 <= monotonic() - began < 2


async def test_a_keda_job_with_nothing_to_do_ends_before_the_model_is_needed(bench: Bench) -> None:
    bench.model.health = "503 Loading"
    assert await bench.run(exit_when_empty=True) is ExitCode.DONE
    assert bench.model.health_asked == 0


async def test_a_keda_job_that_finds_only_others_work_waits(bench: Bench) -> None:
    job_id = await bench.submit()
    claim = await bench.broker.claim(Worker("other"), new_claim_id())
    waiting = bench.start(exit_when_empty=True, queue_pop_timeout_seconds=10)
    _ = await eventually(lambda: bench.progress.serving)
    _ = await bench.broker.release(claim)
    assert await waiting is ExitCode.DONE
    assert (await bench.record(job_id)).status == "completed"


@pytest.mark.parametrize(("max_jobs", "left"), [(1, 2), (2, 1), (0, 0)])
async def test_a_relay_runs_as_many_jobs_as_it_is_told_or_until_idle(bench: Bench, max_jobs: int, left: int) -> None:
    for _ in range(3):
        _ = await bench.submit()
    assert await bench.run(max_jobs=max_jobs) is ExitCode.DONE
    assert (await bench.broker.counts()).pending == left


async def test_a_failed_job_is_a_verdict_and_the_next_one_runs(bench: Bench) -> None:
    lost = await bench.submit(input_key="nowhere/input")
    good = await bench.submit()
    assert await bench.run(max_jobs=0) is ExitCode.DONE
    assert (await bench.record(lost)).error_code == "input_missing"
    assert (await bench.record(good)).status == "completed"


# -- readiness ----------------------------------------------------------------------------------------------------


async def test_no_job_is_claimed_before_the_model_is_ready(bench: Bench) -> None:
    bench.model.health = "503 Loading"
    job_id = await bench.submit()
    running = bench.start()
    _ = await eventually(lambda: bench.model.health_asked >= 3)
    assert (await bench.record(job_id)).status == "pending"
    bench.model.health = "200 OK"
    assert await running is ExitCode.DONE
    assert (await bench.record(job_id)).status == "completed"


@requirement("relay:exit:code-says-what-happened")
@pytest.mark.parametrize(("health", "words"), [("503 Loading", "503"), ("302 Found", "302"), ("", "refused")])
async def test_a_model_that_never_becomes_ready_ends_the_process_in_words(
    bench: Bench, health: str, words: str
) -> None:
    bench.model.health = health
    if not health:
        await bench.model.close()
    job_id = await bench.submit()
    with pytest.raises(ModelNotReady, match=f"(?s)RELAY_INFERENCE_URL|{words}"):
        _ = await bench.run(ready_timeout_seconds=0.3)
    assert (await bench.record(job_id)).status == "pending"


async def test_after_a_fault_of_the_model_the_next_job_waits_until_it_is_ready_again(bench: Bench) -> None:
    first = await bench.submit()
    second = await bench.submit()

    async def fail_once(exchange: Any) -> None:
        bench.model.health = "503 Loading"
        bench.model.handler = bench_answer
        exchange.writer.transport.abort()

    bench_answer = bench.model.handler
    bench.model.handler = fail_once
    running = bench.start(max_jobs=2, ready_timeout_seconds=20)
    _ = await eventually(lambda: bench.progress.phase == "waiting for the model" and bench.model.health_asked > 1)
    assert (await bench.record(first)).error_code == "inference_error"
    assert (await bench.record(second)).status == "pending"
    bench.model.health = "200 OK"
    assert await running is ExitCode.DONE
    assert (await bench.record(second)).status == "completed"


# -- SIGTERM ------------------------------------------------------------------------------------------------------


@requirement("relay:exit:code-says-what-happened")
async def test_sigterm_while_the_model_is_awaited_ends_with_0_at_once(bench: Bench) -> None:
    bench.model.health = "503 Loading"
    running = bench.start()
    _ = await eventually(lambda: bench.model.health_asked >= 3)
    bench.stop.set()
    assert await asyncio.wait_for(running, 1) is ExitCode.DONE


async def test_sigterm_while_the_pop_waits_ends_with_0_and_a_job_of_the_same_instant_stays_at_the_head(
    bench: Bench,
) -> None:
    running = bench.start(queue_pop_timeout_seconds=0)
    _ = await eventually(lambda: bench.progress.serving)
    bench.stop.set()
    first, second = await bench.submit(), await bench.submit()
    assert await asyncio.wait_for(running, 2) is ExitCode.DONE
    assert bench.broker.specification.state.pending == [first, second]
    assert (await bench.record(first)).claims <= 1
    assert bench.model.exchanges == []


@requirement("relay:sigterm:drain-then-release")
async def test_sigterm_mid_job_lets_it_finish_within_the_drain_time(bench: Bench) -> None:
    finish = asyncio.Event()

    async def slow(exchange: Any) -> None:
        _ = await exchange.read_body()
        _ = await finish.wait()
        await exchange.answer()

    bench.model.handler = slow
    job_id, other = await bench.submit(), await bench.submit()
    running = bench.start(max_jobs=0)
    _ = await bench.asked()
    bench.stop.set()
    done, _ = await asyncio.wait({running}, timeout=0.3)
    assert not done
    finish.set()
    assert await running is ExitCode.DONE
    assert (await bench.record(job_id)).status == "completed"
    assert (await bench.record(other)).status == "pending"


@requirement("relay:sigterm:drain-then-release", "place:release:back-at-the-head")
async def test_sigterm_mid_job_gives_it_back_uncounted_when_the_drain_time_is_over(bench: Bench, hang: Any) -> None:
    bench.model.handler = hang
    job_id, other = await bench.submit(), await bench.submit()
    running = bench.start(drain_seconds=0.2)
    exchange = await bench.asked()
    bench.stop.set()
    assert await running is ExitCode.DONE
    record = await bench.record(job_id)
    assert (record.status, record.reaps, record.failures) == ("pending", 0, 0)
    assert bench.broker.specification.state.pending == [job_id, other]
    _ = await eventually(exchange.closed.is_set, within=2)
    assert bench.results() == []


async def test_sigterm_with_redis_hung_ends_within_seconds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_STOP_SECONDS", 0.2)

    class Hung(FaultyBroker):
        async def claim(self, *_: Any, **__: Any) -> None:
            await anyio.sleep_forever()

        async def interrupt(self) -> None:
            await anyio.sleep_forever()

    bench.relay_broker = Hung(bench.broker)
    running = bench.start()
    _ = await eventually(lambda: bench.progress.serving)
    bench.stop.set()
    assert await asyncio.wait_for(running, 2) is ExitCode.DONE


async def test_sigterm_while_the_liveness_is_awaited_ends_with_0(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute:
        async def cancels(self, model: str, on_connected: Any) -> Any:
            await anyio.sleep_forever()
            yield ""

    bench.signals = Mute()
    monkeypatch.setattr(loop, "_SUBSCRIBED_SECONDS", 30)
    running = bench.start()
    _ = await eventually(lambda: bench.progress.serving)
    bench.stop.set()
    assert await asyncio.wait_for(running, 2) is ExitCode.DONE


async def test_a_claim_that_names_no_limit_has_the_models_own(bench: Bench, hang: Any) -> None:
    class Old(FaultyBroker):
        async def claim(self, *arguments: Any, **options: Any) -> Any:
            claim = await bench.broker.claim(*arguments, **options)
            return claim._replace(record=msgspec.structs.replace(claim.record, execute_until=None))

    bench.model.handler = hang
    bench.config["execution_timeout_seconds"] = 0.3
    bench.relay_broker = Old(bench.broker)
    job_id = await bench.submit()
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).error_code == "execution_timeout"


# -- Redis and its outcomes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", ["claim", "complete", "counts"])
async def test_a_verb_that_failed_or_whose_reply_was_lost_is_repeated_and_the_job_runs_once(
    bench: Bench, verb: str, when: str
) -> None:
    error = BrokerUnavailable("away") if when == "before" else OutcomeUnknown("reply lost")
    job_id = await bench.submit()
    bench.relay_broker = FaultyBroker(bench.broker, (verb, when, error), (verb, when, error))
    assert await bench.run(exit_when_empty=True, queue_pop_timeout_seconds=5) is ExitCode.DONE
    record = await bench.record(job_id)
    assert (record.status, record.claims) == ("completed", 1)
    assert len(bench.model.exchanges) == 1
    assert len(await bench.events()) == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_failure_whose_report_was_lost_is_reported_again_and_counted_once(bench: Bench, when: str) -> None:
    job_id = await bench.submit(input_key="nowhere")
    bench.relay_broker = FaultyBroker(bench.broker, ("fail", when, OutcomeUnknown("lost")))
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).error_code == "input_missing"
    assert len(await bench.events()) == 1


@requirement("relay:exit:code-says-what-happened")
async def test_redis_away_for_too_long_before_a_claim_ends_the_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "BROKEN_SECONDS", 0.5)
    bench.relay_broker = FaultyBroker(bench.broker, *[("claim", "before", BrokerUnavailable("away"))] * 50)
    with pytest.raises(BrokerUnavailable):
        _ = await bench.run(queue_pop_timeout_seconds=0)


async def test_a_pop_that_worked_for_long_before_it_broke_is_no_part_of_an_outage(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "BROKEN_SECONDS", 0.5)
    monkeypatch.setattr(patience, "_WORKED_SECONDS", 0.2)
    monkeypatch.setattr(patience, "_BACKOFF", Backoff(0.01, 0.01))
    pops = 0

    class Breaking(FaultyBroker):
        async def claim(self, *arguments: Any, **options: Any) -> Any:
            nonlocal pops
            pops += 1
            if pops == 4:
                return await bench.broker.claim(*arguments, **options)
            await anyio.sleep(0.4)
            raise OutcomeUnknown("the server was restarted")

    bench.relay_broker = Breaking(bench.broker)
    job_id = await bench.submit()
    assert await bench.run(queue_pop_timeout_seconds=0) is ExitCode.DONE
    assert (await bench.record(job_id)).status == "completed"


async def test_a_result_that_cannot_be_reported_for_longer_than_the_claim_can_live_is_left_to_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_LEAST_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(attempt, "_PATIENCE_LEASES", 0)
    job_id = await bench.submit()
    bench.relay_broker = FaultyBroker(bench.broker, *[("complete", "before", BrokerUnavailable("away"))] * 50)
    with pytest.raises(BrokerUnavailable):
        _ = await bench.run()
    assert (await bench.record(job_id)).status == "processing"  # its lease runs out, and the reaper gives it to another


@requirement("relay:sigterm:drain-then-release")
async def test_sigterm_while_redis_does_not_take_the_verdict_ends_with_0(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "RELEASE_SECONDS", 0.3)
    _ = await bench.submit()
    bench.relay_broker = broker = FaultyBroker(bench.broker, *[("complete", "before", BrokerUnavailable("away"))] * 50)
    running = bench.start(drain_seconds=0.1)
    _ = await eventually(lambda: "complete" in broker.calls)
    bench.stop.set()
    assert await asyncio.wait_for(running, 3) is ExitCode.DONE


# -- faults of the process itself ---------------------------------------------------------------------------------


async def test_a_store_that_cannot_be_opened_gives_the_job_back_and_ends_the_process(bench: Bench) -> None:
    async def fail() -> None:
        raise ConfigurationError("BLOBS_URL: wrong")

    bench.open_store = fail
    job_id = await bench.submit()
    with pytest.raises(ConfigurationError, match="BLOBS_URL"):
        _ = await bench.run()
    record = await bench.record(job_id)
    assert (record.status, record.reaps) == ("pending", 0)


async def test_a_store_that_cannot_be_opened_ends_a_waiting_process_too(bench: Bench) -> None:
    async def fail() -> None:
        raise ConfigurationError("BLOBS_URL: wrong")

    bench.open_store = fail
    with pytest.raises(ConfigurationError, match="BLOBS_URL"):
        await asyncio.wait_for(bench.run(queue_pop_timeout_seconds=0), 5)


async def test_a_liveness_that_ended_gives_the_job_back_and_ends_the_process(bench: Bench, hang: Any) -> None:
    bench.model.handler = hang
    job_id = await bench.submit()
    running = bench.start()
    _ = await bench.asked()
    bench.progress.break_off(RuntimeError("the thread died"))
    with pytest.raises(RuntimeError, match="the thread died"):
        _ = await running
    assert (await bench.record(job_id)).status == "pending"


# -- retries and the breaker --------------------------------------------------------------------------------------


def answering(status: str, *headers: str) -> Callable[[Any], Awaitable[None]]:
    async def handler(exchange: Any) -> None:
        _ = await exchange.read_body()
        await exchange.answer(status, b"", *headers)

    return handler


@pytest.mark.parametrize("status", ["429 Slow", "500 Oh", "503 Busy", "408 Slow"])
async def test_a_retryable_answer_is_retried_until_the_attempts_are_used_up(bench: Bench, status: str) -> None:
    bench.model.handler = answering(status)
    bench.config["retries"] = Retries(max_attempts=3, backoff_seconds=10, max_backoff_seconds=60)
    job_id = await bench.submit()
    for failures in (1, 2):
        assert await bench.run() is ExitCode.DONE
        record = await bench.record(job_id)
        assert (record.status, record.failures) == ("pending", failures)
        assert (await bench.broker.counts()).delayed == 1
        bench.queue.clock.advance(60_000)
        assert await bench.broker.promote() == 1
    assert await bench.run() is ExitCode.DONE
    record = await bench.record(job_id)
    assert (record.status, record.http_status) == ("failed", int(status[:3]))
    assert len(bench.model.exchanges) == 3


@pytest.mark.parametrize("status", ["400 Bad", "404 No", "422 No"])
async def test_an_answer_that_blames_the_job_is_final(bench: Bench, status: str) -> None:
    bench.model.handler = answering(status)
    bench.config["retries"] = Retries(max_attempts=3)
    job_id = await bench.submit()
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).status == "failed"


async def test_a_retry_after_is_honoured(bench: Bench) -> None:
    bench.model.handler = answering("429 Slow", "Retry-After: 90")
    bench.config["retries"] = Retries(max_attempts=2, backoff_seconds=1, max_backoff_seconds=2)
    _ = await bench.submit()
    assert await bench.run() is ExitCode.DONE
    bench.queue.clock.advance(89_000)
    assert await bench.broker.promote() == 0
    bench.queue.clock.advance(1_000)
    assert await bench.broker.promote() == 1


async def test_a_retry_that_would_pass_the_jobs_deadline_is_not_made(bench: Bench) -> None:
    bench.model.handler = answering("503 Busy", "Retry-After: 90")
    bench.config["retries"] = Retries(max_attempts=5)
    job_id = await bench.submit(deadline=str(bench.queue.clock() + 60_000))
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).status == "failed"


async def test_infrastructure_failures_in_a_row_pause_the_model(bench: Bench) -> None:
    bench.model.handler = answering("503 Busy")
    for _ in range(4):
        _ = await bench.submit()
    assert await bench.run(max_jobs=0, breaker_failures=2, breaker_cooldown_seconds=30) is ExitCode.DONE
    counts = await bench.broker.counts()
    assert (counts.paused_reason, counts.paused) == ("breaker", 2)
    assert counts.paused_until == bench.queue.clock() + 30_000


async def test_failures_that_blame_the_job_pause_nothing(bench: Bench) -> None:
    bench.model.handler = answering("422 No")
    for _ in range(4):
        _ = await bench.submit()
    assert await bench.run(max_jobs=0, breaker_failures=2) is ExitCode.DONE
    assert (await bench.broker.counts()).paused_reason == ""


async def test_no_log_line_quotes_the_job_or_the_model(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    async def answer(exchange: Any) -> None:
        await exchange.answer("500 Oh", b"SECRET-ANSWER " + await exchange.read_body())

    bench.model.handler = answer
    _ = await bench.submit(b"SECRET-INPUT", params='{"prompt":"SECRET-PARAM"}', input_filename="SECRET-NAME.wav")
    assert await bench.run() is ExitCode.DONE
    lines = "\n".join(str(vars(record)) for record in caplog.records)
    assert "job.failed" in lines
    assert "SECRET" not in lines
