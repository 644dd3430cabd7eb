"""Spans, their contexts, and what becomes of them with and without a collector."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from queuecore.clock import monotonic
from queuecore.errors import ConfigurationError, QueueFull
from queuecore.telemetry import logs
from queuecore.telemetry.tracing import OPERATIONS, Context, Span, Tracer, trace_id
from queuecore.testing.otlp import Collector

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def start(tracer: Tracer, parent: Span | str = "", link: str = "") -> Span:
    return tracer.start("process", "org/model", job_id="j", parent=parent, link=link)


@pytest.mark.parametrize("given", [SAMPLED, UNSAMPLED, "", "nonsense"])
def test_without_an_endpoint_a_context_passes_on_as_it_came_and_nothing_is_kept(given: str) -> None:
    tracer = Tracer("relay")
    with start(tracer, parent=given) as span:
        assert start(tracer, parent=span).traceparent == given
        assert start(tracer, link=given).traceparent == given
    tracer.load()
    tracer.close(0)

    assert span.trace_id == (TRACE if given in {SAMPLED, UNSAMPLED} else "")
    assert not span.ended_ns


def test_without_an_endpoint_the_sdk_is_never_imported() -> None:
    code = (
        "import sys; from queuecore.telemetry.tracing import Tracer\n"
        "tracer = Tracer('relay'); tracer.start('claim', 'm', job_id='j').end(); tracer.load(); tracer.close(1)\n"
        "print(*[name for name in sys.modules if 'opentelemetry' in name or name == 'queuecore.telemetry.otlp'])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_with_an_endpoint_it_is_imported_when_it_is_loaded_and_not_before() -> None:
    code = (
        "import sys; from queuecore.telemetry.tracing import Tracer\n"
        "tracer = Tracer('relay', 'http://127.0.0.1:9'); tracer.start('claim', 'm', job_id='j').end()\n"
        "print('opentelemetry.sdk' in sys.modules); tracer.load(); print('opentelemetry.sdk' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["False", "True"]


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded before", "loaded at the end"])
def test_a_span_arrives_with_its_name_kind_parent_link_and_attributes(collector: Collector, loaded: bool) -> None:
    tracer = Tracer("relay", collector.url)
    if loaded:
        tracer.load()
    claim = start(tracer, link=SAMPLED)
    claim.end()
    with start(tracer, parent=claim, link=SAMPLED) as run:
        run.set("relayq.attempt", 2)
    with tracer.start("complete", "org/model", job_id="j", parent=run):
        pass
    tracer.close(5)

    assert collector.names == ["complete org/model", "process org/model", "process org/model"]
    root, seen = [span for span in collector.spans if span.kind == "CONSUMER"]
    assert (root.parent, root.links) == ("", (f"{TRACE}-{SPAN}",))
    assert (seen.parent, seen.trace_id, seen.links) == (root.span_id, root.trace_id, (f"{TRACE}-{SPAN}",))
    assert seen.place == "-".join(run.traceparent.split("-")[1:3])
    assert seen.trace_id != TRACE, "a run is linked to the submission, not a part of it"
    assert seen.attributes == {
        "messaging.system": "redis",
        "messaging.destination.name": "org/model",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": "j",
        "relayq.attempt": 2,
    }
    settled = collector.named("complete org/model")
    assert (settled.parent, settled.kind) == (seen.span_id, "CLIENT")
    assert settled.resource["service.name"] == "relayq-relay"


def test_a_clients_context_becomes_the_parent_and_the_trace(collector: Collector) -> None:
    tracer = Tracer("gateway", collector.url)
    with tracer.start("submit", "m", job_id="j", parent=SAMPLED) as span:
        assert span.traceparent.startswith(f"00-{TRACE}-")
        assert span.traceparent != SAMPLED
    tracer.close(5)

    seen = collector.named("submit m")
    assert (seen.trace_id, seen.parent, seen.kind) == (TRACE, SPAN, "PRODUCER")


def test_what_was_not_sampled_at_its_beginning_is_recorded_nowhere(collector: Collector) -> None:
    tracer = Tracer("relay", collector.url)
    with start(tracer, link=UNSAMPLED) as span, start(tracer, parent=span) as child:
        assert child.traceparent.endswith("-00")
    start(tracer, parent=UNSAMPLED).end()
    tracer.close(5)

    assert collector.spans == []


def test_the_standard_variable_decides_for_a_trace_that_begins_here(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    tracer = Tracer("gateway", collector.url)
    tracer.load()
    with start(tracer) as span:
        assert span.traceparent.endswith("-00")
    start(tracer, parent=SAMPLED).end()
    tracer.close(5)

    assert [span.trace_id for span in collector.spans] == [TRACE]


def test_an_exception_marks_the_span_with_its_code(collector: Collector) -> None:
    tracer = Tracer("gateway", collector.url)
    with pytest.raises(QueueFull), start(tracer):
        raise QueueFull("m", 3)
    with pytest.raises(ValueError, match="secret"), tracer.start("fail", "m", job_id="j"):
        raise ValueError("a secret")
    tracer.close(5)

    assert collector.named("process org/model").error == "queue_full"
    assert collector.named("fail m").error == "ValueError"
    assert "secret" not in str(collector.spans)


def test_a_span_ends_once(collector: Collector) -> None:
    tracer = Tracer("gateway", collector.url)
    with start(tracer) as span:
        span.end()
    tracer.close(5)

    assert len(collector.spans) == 1


@pytest.mark.parametrize("mode", ["hang", "refuse", "gone"])
def test_a_dead_collector_costs_no_more_than_the_bound_and_is_said_once(mode: str) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with Collector() as collector:
        collector.mode = "hang" if mode == "hang" else "refuse"
        if mode == "gone":
            collector.__exit__()
        logs.configure("test", "DEBUG", "json", stream)
        try:
            tracer = Tracer("relay", collector.url, timeout_seconds=0.3)
            tracer.load()
            began = monotonic()
            for _ in range(3):
                start(tracer).end()
                assert monotonic() - began < 1, "giving a span away waits for nobody"
                tracer.close(1)
            took = monotonic() - began
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
            logging.captureWarnings(capture=False)

    assert took < 3.5
    said = [line for line in map(json.loads, stream.getvalue().splitlines()) if line["level"] != "DEBUG"]
    assert [line["event"] for line in said] == ["span.dropped"], said


def test_the_end_does_not_wait_for_a_sending_that_hangs(collector: Collector) -> None:
    collector.mode = "hang"
    tracer = Tracer("relay", collector.url, timeout_seconds=30)
    tracer.load()
    start(tracer).end()
    began = monotonic()
    tracer.close(0.2)

    assert monotonic() - began < 2


@pytest.mark.parametrize(
    "endpoint", ["collector:4317", "grpc://collector:4317", "http://", "http:// x", "https:///v1/traces"]
)
def test_an_endpoint_that_is_no_url_is_refused_and_named(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
        _ = Tracer("relay", endpoint)


def test_an_installation_without_the_sdk_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", nothing)
    with pytest.raises(ConfigurationError, match=r"queuecore\[tracing\]"):
        _ = Tracer("relay", "http://127.0.0.1:4318")


@pytest.mark.parametrize(
    "text", ["", "x", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", SAMPLED.upper()]
)
def test_a_broken_context_is_none(text: str) -> None:
    assert Context.parse(text) is None
    assert trace_id(text) == ""


def test_a_context_of_a_later_version_with_more_flags_is_read() -> None:
    context = Context.parse(f"01-{TRACE}-{SPAN}-03")
    assert context is not None
    assert context == (TRACE, SPAN, True)
    assert context.traceparent == SAMPLED


def test_every_operation_is_a_verb_of_the_design_or_the_webhook() -> None:
    assert set(OPERATIONS) == {"submit", "claim", "process", "complete", "fail", "release", "deliver"}
