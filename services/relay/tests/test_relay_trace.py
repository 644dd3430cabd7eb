"""The spans of a run, and the trace that its log lines and its request to the model name."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import pytest

from queuecore.broker import Broker, Claim, Result
from queuecore.errors import ClaimLost
from queuecore.job import Status
from queuecore.telemetry import logs
from queuecore.telemetry.tracing import Tracer
from queuecore.testing.otlp import Collector
from queuecore.testing.raw_http import RawExchange, RawHttpServer
from relay.attempt import ExitCode

pytestmark = pytest.mark.anyio

Handler: TypeAlias = Callable[[RawExchange], Awaitable[None]]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SUBMISSION = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure("relay", "DEBUG", "json", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def test_a_relay_that_does_not_trace_imports_nothing_of_opentelemetry_before_its_claim() -> None:
    """redis-py would, wherever the SDK is installed: 30 ms and more of every relay's start."""
    code = "import relay.process, sys; print(*[name for name in sys.modules if name.startswith('opentelemetry')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == []


async def test_a_run_is_linked_to_the_submission_and_its_parts_hang_together(bench: Any, collector: Collector) -> None:
    bench.tracer = Tracer("relay", collector.url)
    job_id = await bench.submit(traceparent=SUBMISSION)
    assert await bench.run() == ExitCode.DONE
    bench.tracer.close(5)

    assert collector.names == ["claim m", "complete m", "process m"]
    claim, run, verdict = (collector.named(f"{name} m") for name in ("claim", "process", "complete"))
    assert (claim.parent, claim.kind, claim.links) == ("", "CLIENT", (f"{TRACE}-{SPAN}",))
    assert (run.parent, run.kind, run.links) == (claim.span_id, "CONSUMER", (f"{TRACE}-{SPAN}",))
    assert (verdict.parent, verdict.kind) == (run.span_id, "CLIENT")
    assert {span.trace_id for span in collector.spans} == {claim.trace_id} != {TRACE}
    assert {span.attributes["messaging.message.id"] for span in collector.spans} == {job_id}
    assert (run.attributes["relayq.status"], run.attributes["relayq.attempt"], run.error) == ("completed", 1, "")


async def test_the_model_is_told_the_run_and_without_tracing_the_submission(
    bench: Any, model: RawHttpServer, collector: Collector
) -> None:
    bench.tracer = Tracer("relay", collector.url)
    _ = await bench.submit(traceparent=SUBMISSION)
    assert await bench.run() == ExitCode.DONE
    bench.tracer.close(5)
    bench.tracer = Tracer()
    _ = await bench.submit(traceparent=SUBMISSION)
    assert await bench.run() == ExitCode.DONE

    traced, plain = (exchange.header("traceparent") for exchange in model.exchanges)
    run = collector.named("process m")
    assert traced == f"00-{run.trace_id}-{run.span_id}-01"
    assert plain == SUBMISSION


async def test_a_failed_run_carries_its_code_and_no_word_of_the_model(
    bench: Any, model: RawHttpServer, collector: Collector
) -> None:
    async def refuse(exchange: RawExchange) -> None:
        _ = await exchange.read_body()
        await exchange.answer("422 No", b"the patient's name")

    model.handler = refuse
    bench.tracer = Tracer("relay", collector.url)
    _ = await bench.submit()
    assert await bench.run() == ExitCode.DONE
    bench.tracer.close(5)

    assert collector.names == ["claim m", "fail m", "process m"]
    run = collector.named("process m")
    assert (run.error, run.attributes["relayq.status"], run.links) == ("inference_error", "failed", ())
    assert collector.named("fail m").error == ""
    assert "patient" not in str(collector.spans)


async def test_a_run_that_is_given_back_ends_with_a_release(
    bench: Any, model: RawHttpServer, collector: Collector, hang: Handler
) -> None:
    model.handler = hang
    bench.tracer = Tracer("relay", collector.url)
    _ = await bench.submit()
    running = bench.start(drain_seconds=0)
    _ = await bench.asked()
    bench.stop.set()
    assert await running == ExitCode.DONE
    bench.tracer.close(5)

    assert collector.names == ["claim m", "process m", "release m"]
    assert collector.named("process m").attributes["relayq.status"] == "pending"


class Refusing:
    """A broker whose verdicts come too late."""

    def __init__(self, inner: Broker) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def complete(self, claim: Claim, result: Result) -> Status:
        raise ClaimLost(claim.job_id)


async def test_a_verdict_that_is_refused_marks_the_call_and_the_run(bench: Any, collector: Collector) -> None:
    bench.relay_broker = Refusing(bench.broker)
    bench.tracer = Tracer("relay", collector.url)
    _ = await bench.submit()
    assert await bench.run() == ExitCode.CLAIM_LOST
    bench.tracer.close(5)

    assert collector.named("complete m").error == "claim_lost"
    assert collector.named("process m").error == "claim_lost"


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "not traced"])
async def test_every_line_of_a_run_names_the_job_and_the_trace_it_was_submitted_in(
    bench: Any, collector: Collector, lines: Callable[[], list[dict[str, Any]]], traced: bool
) -> None:
    bench.tracer = Tracer("relay", collector.url) if traced else Tracer()
    job_id = await bench.submit(traceparent=SUBMISSION)
    bench.store.objects.clear()  # the input is gone: other modules have something to say
    assert await bench.run() == ExitCode.DONE

    written = {line["event"]: line for line in lines()}
    assert {"job.claimed", "connection.lost", "job.failed"} <= written.keys()
    for event in ("job.claimed", "connection.lost", "job.failed"):
        assert (written[event]["job_id"], written[event]["trace_id"]) == (job_id, TRACE), event


async def test_a_job_without_a_trace_is_logged_without_one(
    bench: Any, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    _ = await bench.submit()
    assert await bench.run() == ExitCode.DONE

    assert [line for line in lines() if "trace_id" in line] == []


async def test_the_lines_between_two_jobs_of_one_process_name_neither(
    bench: Any, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    first, second = await bench.submit(traceparent=SUBMISSION), await bench.submit()
    assert await asyncio.wait_for(bench.run(max_jobs=0), 30) == ExitCode.DONE

    assert {line["job_id"] for line in lines() if "trace_id" in line} == {first}
    assert [line["job_id"] for line in lines() if line["event"] == "job.completed"] == [first, second]
    assert [line for line in lines() if line["event"] == "queue.emptied" and "job_id" in line] == []
