"""The spans of one claim: `claim`, over when this begins; `process`, the run; and that of the verdict's call."""

from __future__ import annotations

import msgspec

from queuecore.broker import Claim
from queuecore.telemetry.tracing import Operation, Span, Tracer, trace_id


class Trace:
    """Of the claim that was asked for at ``asked_ns``. Made when it is there."""

    def __init__(self, tracer: Tracer, claim: Claim, asked_ns: int) -> None:
        self._tracer = tracer
        self._claim = claim
        record = claim.record
        self.submission_id = trace_id(record.traceparent)  # what log lines carry, whether this process traces or not
        asked = self._start("claim", link=record.traceparent, started_ns=asked_ns)
        asked.end()
        self.run = self._start("process", parent=asked, link=record.traceparent)
        self.run.set("relayq.attempt", record.claims)

    def verdict(self, verb: Operation) -> Span:
        """The call that reports how the run ended."""
        return self._start(verb, parent=self.run)

    def handed_on(self) -> Claim:
        """The claim as the model is to see it: what it does is a part of the run."""
        record = msgspec.structs.replace(self._claim.record, traceparent=self.run.traceparent)
        return self._claim._replace(record=record)

    def _start(
        self, operation: Operation, *, parent: Span | str = "", link: str = "", started_ns: int | None = None
    ) -> Span:
        model, job_id = self._claim.record.model, self._claim.job_id
        return self._tracer.start(operation, model, job_id=job_id, parent=parent, link=link, started_ns=started_ns)
