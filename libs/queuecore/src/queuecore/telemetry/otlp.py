"""The OpenTelemetry SDK's side of tracing: batches of spans, sent over OTLP/HTTP by a thread of the SDK's.

Imported by ``Tracer.load`` only. The standard OTEL_* variables apply (headers, certificates, compression, sampler,
batch sizes, OTEL_RESOURCE_ATTRIBUTES); the endpoint is the one of our settings.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from queuecore.telemetry.names import Event
from queuecore.telemetry.tracing import Context, Span

_VERSION: Final = version("queuecore")
_SCOPE: Final = InstrumentationScope("relayq", _VERSION)
_log = logging.getLogger(__name__)


class Pipe:
    """Where finished spans go."""

    def __init__(self, service: str, endpoint: str, timeout_seconds: float | None) -> None:
        # It reports each failure, with a stack; we say once when spans begin to be dropped.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._resource = Resource.create(
            {
                "service.name": f"relayq-{service}",
                "service.version": _VERSION,
                "service.instance.id": f"{platform.node()}:{os.getpid()}",
            }
        )
        inner = OTLPSpanExporter(endpoint=_traces_url(endpoint), timeout=timeout_seconds)
        self._processor = BatchSpanProcessor(_Exporter(inner, endpoint))
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler

    def samples(self, trace_id: str, name: str) -> bool:
        """Whether a trace that begins here is recorded: OTEL_TRACES_SAMPLER."""
        return self._sampler.should_sample(None, int(trace_id, 16), name).decision.is_sampled()

    def give(self, span: Span) -> None:
        """Take an ended span; never waits."""
        assert span.context is not None  # noqa: S101  only recorded spans are handed over
        attributes = span.attributes | ({"error.type": span.error} if span.error else {})
        self._processor.on_end(
            ReadableSpan(
                span.name,
                _context(span.context, remote=False),
                parent=_context(span.parent, remote=span.remote_parent) if span.parent else None,
                resource=self._resource,
                attributes=attributes,
                links=(Link(_context(span.link, remote=True)),) if span.link else (),
                kind=SpanKind[span.kind],
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
                start_time=span.started_ns,
                end_time=span.ended_ns,
                instrumentation_scope=_SCOPE,
            )
        )

    def flush(self) -> None:
        """Send what is there; blocks for as long as the exporter does."""
        _ = self._processor.force_flush()


class _Exporter(SpanExporter):
    """The exporter, and a line in the log when it begins to fail and when it ends to."""

    def __init__(self, inner: SpanExporter, endpoint: str) -> None:
        self._inner = inner
        self._endpoint = endpoint
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send one batch."""
        result = self._inner.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed != self._failing:
            self._failing = failed
            if failed:
                _log.warning(
                    "spans are dropped: %s does not take them", self._endpoint, extra={"event": Event.SPANS_DROPPED}
                )
            else:
                _log.info("spans are taken again", extra={"event": Event.CONNECTION_RESTORED})
        return result

    def shutdown(self) -> None:
        """End it."""
        self._inner.shutdown()


def _context(context: Context, *, remote: bool) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote=remote, trace_flags=flags)


def _traces_url(endpoint: str) -> str:
    return f"{endpoint.rstrip('/')}/v1/traces"
