"""The span of a submission, and the context that its job carries."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from gateway_stack import MakeStack

from queuecore.telemetry import logs
from queuecore.telemetry.tracing import Tracer
from queuecore.testing.otlp import Collector

pytestmark = pytest.mark.anyio

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    made = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure("gateway", "DEBUG", "json", made)
    yield made
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


async def test_a_submission_goes_on_the_clients_trace_and_its_job_carries_the_submissions_place(
    make_stack: MakeStack, collector: Collector, stream: io.StringIO
) -> None:
    tracer = Tracer("gateway", collector.url)
    tracer.load()
    stack = await make_stack(tracer=tracer)
    response = await stack.client.post("/jobs/echo?model=small", content=b"x", headers={"traceparent": CLIENT})
    tracer.close(5)
    job_id = response.json()["job_id"]

    span = collector.named("submit small")
    record = await stack.brokers["small"].get(job_id)
    assert (span.trace_id, span.parent, span.kind, span.error) == (TRACE, SPAN, "PRODUCER", "")
    assert span.attributes["messaging.message.id"] == job_id
    assert record.traceparent == f"00-{TRACE}-{span.span_id}-01"
    (line,) = [line for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == "job.submitted"]
    assert (line["job_id"], line["trace_id"]) == (job_id, TRACE)


async def test_without_a_clients_trace_one_begins_here(make_stack: MakeStack, collector: Collector) -> None:
    tracer = Tracer("gateway", collector.url)
    stack = await make_stack(tracer=tracer)
    response = await stack.client.post("/jobs/echo?model=small", content=b"x", headers={"traceparent": "broken"})
    tracer.close(5)

    span = collector.named("submit small")
    record = await stack.brokers["small"].get(response.json()["job_id"])
    assert (span.parent, record.traceparent) == ("", f"00-{span.trace_id}-{span.span_id}-01")


async def test_a_queue_that_is_full_marks_the_span(make_stack: MakeStack, collector: Collector) -> None:
    tracer = Tracer("gateway", collector.url)
    stack = await make_stack(tracer=tracer)
    answers = [await stack.client.post("/jobs/echo?model=small", content=b"x") for _ in range(4)]
    tracer.close(5)

    assert [answer.status_code for answer in answers] == [202, 202, 202, 429]
    assert [span.error for span in collector.spans] == ["", "", "", "queue_full"]


async def test_with_tracing_off_a_job_without_a_trace_is_logged_without_one(
    make_stack: MakeStack, stream: io.StringIO
) -> None:
    stack = await make_stack()
    _ = await stack.client.post("/jobs/echo?model=small", content=b"x")

    (line,) = [line for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == "job.submitted"]
    assert "trace_id" not in line
