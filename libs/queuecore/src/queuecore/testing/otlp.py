"""A collector that keeps what it is sent (OTLP over HTTP), or hangs, or refuses."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

_PATH: Final = "/v1/traces"


class SeenSpan(NamedTuple):
    """One span as it was sent. Ids are hexadecimal; ``parent`` is "" at a root; ``links`` are `trace_id-span_id`."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent: str
    links: tuple[str, ...]
    error: str
    attributes: dict[str, str | int]
    resource: dict[str, str | int]
    seconds: float

    @property
    def place(self) -> str:
        """As a link names it."""
        return f"{self.trace_id}-{self.span_id}"


class Collector:
    """Listens while entered. ``mode`` may be changed at any time."""

    def __init__(self, mode: Literal["accept", "hang", "refuse"] = "accept") -> None:
        self.mode: Literal["accept", "hang", "refuse"] = mode
        self.spans: list[SeenSpan] = []
        self.requests = 0
        self._release = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        """For OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def named(self, name: str) -> SeenSpan:
        """The one span of this name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    @property
    def names(self) -> list[str]:
        """Of every span, in order."""
        return sorted(span.name for span in self.spans)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exit: object) -> None:
        self._release.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                collector.requests += 1
                if collector.mode == "hang":
                    _ = collector._release.wait(60)
                    return
                if collector.mode == "accept" and self.path == _PATH:
                    collector.spans.extend(_spans(content))
                self.send_response(200 if collector.mode == "accept" and self.path == _PATH else 503)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's signature
                return

        return Handler


def _spans(content: bytes) -> list[SeenSpan]:
    request = ExportTraceServiceRequest.FromString(content)
    return [
        SeenSpan(
            span.name,
            Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            tuple(f"{link.trace_id.hex()}-{link.span_id.hex()}" for link in span.links),
            span.status.message if span.status.code == Status.STATUS_CODE_ERROR else "",
            _attributes(span.attributes),
            _attributes(group.resource.attributes),
            (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        )
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, str | int]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
