"""Traces from a submission to its verdict and webhook; off unless OTEL_EXPORTER_OTLP_ENDPOINT is set.

A span is a plain record with ids made here, so its context goes on to the next process or the model at once. The
OpenTelemetry SDK (`queuecore.telemetry.otlp`) is imported by ``load``, in whatever thread calls that, or by ``close``:
a relay that traces claims, runs and reports before it has imported any of it, and one that does not never imports it.
Giving a span away never waits; what no collector takes is dropped.

Names follow OpenTelemetry's messaging conventions 1.44 (status: development): `{operation} {model}`. A run is *linked*
to the submission and not its child: a job may run more than once, and long after.
"""

from __future__ import annotations

import importlib.util
import re
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

from queuecore.clock import wall_ns
from queuecore.errors import ConfigurationError

if TYPE_CHECKING:
    from queuecore.telemetry.otlp import Pipe

Operation = Literal["submit", "claim", "process", "complete", "fail", "release", "deliver"]
Kind = Literal["PRODUCER", "CONSUMER", "CLIENT"]  # members of opentelemetry.trace.SpanKind

# operation -> span kind and `messaging.operation.type`
OPERATIONS: Final[Mapping[Operation, tuple[Kind, str]]] = {
    "submit": ("PRODUCER", "send"),
    "claim": ("CLIENT", "receive"),
    "process": ("CONSUMER", "process"),
    "complete": ("CLIENT", "settle"),
    "fail": ("CLIENT", "settle"),
    "release": ("CLIENT", "settle"),
    "deliver": ("CLIENT", "send"),  # a verdict to the client's address: one span an attempt
}
MOST_KEPT: Final = 1_024
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})\Z")
_SAMPLED: Final = 1


class Context(NamedTuple):
    """A place in a trace, as W3C Trace Context writes it in `traceparent`."""

    trace_id: str
    span_id: str
    sampled: bool

    @classmethod
    def parse(cls, traceparent: str) -> Context | None:
        """None for anything that is not one: a broken context is ignored, as the specification says."""
        found = _TRACEPARENT.match(traceparent)
        return cls(found[1], found[2], bool(int(found[3], 16) & _SAMPLED)) if found else None

    @property
    def traceparent(self) -> str:
        """For the next process."""
        return f"00-{self.trace_id}-{self.span_id}-0{int(self.sampled)}"


def trace_id(traceparent: str) -> str:
    """The trace's id, for a log line; "" when there is none."""
    found = Context.parse(traceparent)
    return found.trace_id if found else ""


class Span:
    """Something that is being done. ``with`` ends it, and marks it with the code of what was raised.

    ``traceparent`` is for whoever comes next: this span's own context, or the given one where tracing is off.
    """

    __slots__ = ("_hand_over", "attributes", "context", "ended_ns", "error", "kind", "link", "name", "parent",
                 "remote_parent", "started_ns", "traceparent")  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: Kind,
        context: Context | None,
        hand_over: Callable[[Span], None] | None,
        *,
        parent: Context | None,
        remote_parent: bool,
        link: Context | None,
        inherited: str,
        started_ns: int,
        attributes: dict[str, str | int],
    ) -> None:
        self.name = name
        self.kind: Kind = kind
        self.context = context
        self.parent = parent
        self.remote_parent = remote_parent
        self.link = link
        self.attributes = attributes
        self.started_ns = started_ns
        self.ended_ns = 0
        self.error = ""
        self.traceparent = context.traceparent if context else inherited
        self._hand_over = hand_over

    @property
    def trace_id(self) -> str:
        """For log lines; "" when there is no trace."""
        return trace_id(self.traceparent)

    def set(self, name: str, value: str | int) -> None:
        """An attribute; few and short."""
        self.attributes[name] = value

    def fail(self, code: str) -> None:
        """It did not do what it was to do; ``code`` as in errors and metrics."""
        self.error = code

    def end(self) -> None:
        """Over, once; what comes later is not heard."""
        if self._hand_over and not self.ended_ns:
            self.ended_ns = max(self.started_ns, wall_ns())
            self._hand_over(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(str(getattr(error, "code", "") or type(error).__name__))
        self.end()


class Tracer:
    """One process's spans. Without an endpoint nothing is recorded, and contexts are passed on as they came.

    ``timeout_seconds`` bounds one sending, repeats included; None leaves it to OTEL_EXPORTER_OTLP_TIMEOUT. Safe from
    any thread.

    Raises:
        ConfigurationError: the endpoint is not a URL, or the SDK is not installed.
    """

    def __init__(self, service: str = "", endpoint: str = "", *, timeout_seconds: float | None = None) -> None:
        if endpoint:
            _check(endpoint)
        self._service = service
        self._endpoint = endpoint
        self._timeout_seconds = timeout_seconds
        self._kept: deque[Span] = deque(maxlen=MOST_KEPT)  # until the SDK is there
        self._pipe: Pipe | None = None
        self._lock = threading.Lock()
        self._loading = threading.Lock()

    def start(
        self,
        operation: Operation,
        model: str,
        *,
        job_id: str,
        parent: Span | str = "",
        link: str = "",
        started_ns: int | None = None,
    ) -> Span:
        """A span that has begun. ``parent`` and ``link`` are contexts of other processes; both may be "".

        Whether it is recorded is decided where a trace begins (OTEL_TRACES_SAMPLER) and kept by all that follow.
        """
        kind, operation_type = OPERATIONS[operation]
        above = parent.context if isinstance(parent, Span) else Context.parse(parent)
        linked = Context.parse(link)
        inherited = parent.traceparent if isinstance(parent, Span) else parent
        context = self._context(f"{operation} {model}", above, above or linked) if self._endpoint else None
        return Span(
            f"{operation} {model}",
            kind,
            context,
            self._take if context and context.sampled else None,
            parent=above,
            remote_parent=not isinstance(parent, Span),
            link=linked,
            inherited=inherited or link,
            started_ns=started_ns or wall_ns(),
            attributes={
                "messaging.system": "redis",
                "messaging.destination.name": model,
                "messaging.operation.name": operation,
                "messaging.operation.type": operation_type,
                "messaging.message.id": job_id,
            },
        )

    def _context(self, name: str, parent: Context | None, decided: Context | None) -> Context:
        trace = parent.trace_id if parent else secrets.token_hex(16)
        sampled = decided.sampled if decided else self._pipe is None or self._pipe.samples(trace, name)
        return Context(trace, secrets.token_hex(8), sampled)

    def _take(self, span: Span) -> None:
        with self._lock:
            if self._pipe is None:
                self._kept.append(span)
                return
        self._pipe.give(span)

    def load(self) -> None:
        """Import the SDK and begin to send; blocks for the import, some 200 ms, so call it in a thread of its own."""
        if not self._endpoint:
            return
        with self._loading:
            if self._pipe is None:
                from queuecore.telemetry.otlp import Pipe  # noqa: PLC0415  the whole point of ``load``

                pipe = Pipe(self._service, self._endpoint, self._timeout_seconds)
                with self._lock:
                    self._pipe = pipe
                for span in self._kept:
                    pipe.give(span)
                self._kept.clear()

    def close(self, within_seconds: float) -> None:
        """Send what there is, for at most ``within_seconds``; a collector that is away costs no more than that."""
        if self._pipe is None and not self._kept:
            return
        sending = threading.Thread(target=self._flush, name="last spans", daemon=True)
        sending.start()
        sending.join(within_seconds)

    def _flush(self) -> None:
        self.load()
        if self._pipe:
            self._pipe.flush()


def _check(endpoint: str) -> None:
    if not re.match(r"https?://[^/\s]+\S*\Z", endpoint):
        raise ConfigurationError("OTEL_EXPORTER_OTLP_ENDPOINT: an http:// or https:// URL (OTLP over HTTP, port 4318)")
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigurationError(
            "OTEL_EXPORTER_OTLP_ENDPOINT: this installation cannot send traces; install queuecore[tracing] or unset it"
        )
