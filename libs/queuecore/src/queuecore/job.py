"""What a job is: statuses, the transition table, the record and the documents made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal

import msgspec


class Status(StrEnum):
    """The states of a job. The last four are terminal."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.EXPIRED})

# (verb, from, to): data for the docs' diagram, for the tests, and for the hypothesis machine's oracle.
TRANSITIONS: Final[tuple[tuple[str, Status | None, Status], ...]] = (
    ("submit", None, Status.PENDING),
    ("claim", Status.PENDING, Status.PROCESSING),
    ("claim", Status.PENDING, Status.CANCELLED),
    ("claim", Status.PENDING, Status.EXPIRED),
    ("claim", Status.PENDING, Status.FAILED),  # a gate dropped it
    ("claim", Status.PROCESSING, Status.PROCESSING),
    ("claim", Status.PROCESSING, Status.FAILED),
    ("claim", Status.PROCESSING, Status.CANCELLED),
    ("complete", Status.PROCESSING, Status.COMPLETED),
    ("complete", Status.PROCESSING, Status.CANCELLED),
    ("complete", Status.PROCESSING, Status.PENDING),  # a pipeline's run goes to its next stage
    ("complete", Status.PENDING, Status.COMPLETED),
    ("complete", Status.PENDING, Status.CANCELLED),
    ("complete", Status.PROCESSING, Status.FAILED),  # said by a seed-protocol relay
    ("complete", Status.PENDING, Status.FAILED),  # likewise
    ("fail", Status.PROCESSING, Status.FAILED),
    ("fail", Status.PROCESSING, Status.CANCELLED),
    ("fail", Status.PROCESSING, Status.PENDING),
    ("release", Status.PROCESSING, Status.PENDING),
    ("release", Status.PROCESSING, Status.CANCELLED),
    ("cancel", Status.PENDING, Status.CANCELLED),
    ("expire", Status.PENDING, Status.EXPIRED),
    ("reap", Status.PENDING, Status.PROCESSING),
    ("reap", Status.PROCESSING, Status.PENDING),
    ("reap", Status.PROCESSING, Status.FAILED),
    ("reap", Status.PROCESSING, Status.CANCELLED),
    ("reconcile", Status.PROCESSING, Status.PENDING),
    ("reconcile", Status.PROCESSING, Status.FAILED),
    ("reconcile", Status.PROCESSING, Status.CANCELLED),
    ("revoke", Status.PROCESSING, Status.FAILED),
    ("revoke", Status.PROCESSING, Status.CANCELLED),
    ("purge", Status.PENDING, Status.CANCELLED),
    ("redrive", Status.FAILED, Status.PENDING),
)

ErrorCode = Literal[
    "inference_error",
    "inference_timeout",
    "inference_unavailable",
    "execution_timeout",
    "input_missing",
    "input_corrupt",
    "storage_unavailable",
    "worker_lost",
    "deadline_exceeded",
    "pending_too_long",
    "cancelled",
    "purged",
    "gate_dropped",
    "invalid_request",
    "model_not_found",
]


class Step(msgspec.Struct, frozen=True):
    """What a pipeline's run does at one stage, fixed when it is submitted."""

    stage: str
    operation: str
    url: str
    request: str


class PastStage(msgspec.Struct, frozen=True):
    """A stage that a run has behind it; its result was the next one's input."""

    stage: str
    queued_at: int
    started_at: int
    finished_at: int
    attempts: int
    reaps: int
    failures: int
    result_key: str
    result_size: int
    claim: str  # <fence>:<claim_id> of the claim that completed it


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One ``job:<id>`` hash, typed. Absent fields have the defaults below; times are epoch milliseconds.

    A record that a newer version wrote may hold more fields: they are ignored here and kept in Redis.
    """

    id: str
    status: str
    generation: int = 1
    tenant: str = ""
    service_type: str = ""
    model: str = ""
    operation: str = ""
    priority: str = "false"  # what the transport understands: false|true on lists
    created_at: int = 0
    not_before: int | None = None
    deadline: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    expires_at: int | None = None
    fence: int = 0
    claim_id: str = ""
    owner: str = ""
    owner_client: str = ""  # <run_id>:<client id> of the owner's liveness connection
    execute_until: int | None = None
    lease_until: int | None = None
    seq: int = 0
    claims: int = 0
    reaps: int = 0
    failures: int = 0
    last_exit: str = ""
    input_key: str = ""
    input_size: int = 0
    input_sha256: str = ""
    input_filename: str = ""
    input_content_type: str = ""
    params: str = ""  # JSON text of the client's fields, byte for byte
    request: str = ""  # multipart | json | raw
    inference_url: str = ""
    result_key: str = ""
    result_size: int | None = None
    result_content_type: str = ""
    result_sha256: str = ""
    tokens_estimate: int | None = None  # what the client allows the model to use
    tokens_used: int | None = None  # what the answer said
    error_code: str = ""
    error_message: str = ""
    http_status: int | None = None
    callback_url: str = ""
    traceparent: str = ""
    cancel_requested: int = 0
    pipeline: str = ""
    stage: str = ""  # where a pipeline's run stands; ``model`` says the same
    plan: tuple[Step, ...] = ()
    history: tuple[PastStage, ...] = ()
    waiting_since: int | None = None  # redriven, or come to this stage; None: as created
    ordering_key: str = ""
    queue_wait_ms: int | None = None
    processing_ms: int | None = None

    @property
    def terminal(self) -> bool:
        """Whether a verdict was reached."""
        return self.status in TERMINAL

    @property
    def event_id(self) -> str:
        """The id of the verdict's one event (G9)."""
        return f"{self.id}:{self.generation}"


def record_from_fields(fields: Mapping[str, str]) -> JobRecord:
    """The typed record of a Redis hash.

    Raises:
        ValueError: a field is not of its type; the text names it.
    """
    known: dict[str, object] = {
        name: value for name, value in fields.items() if name in JobRecord.__struct_fields__ and value != ""
    }
    try:
        known |= {name: msgspec.json.decode(fields[name]) for name in ("plan", "history") if name in known}
        return msgspec.convert(known, JobRecord, strict=False)
    except msgspec.MsgspecError as error:
        raise ValueError(f"job record {fields.get('id', '?')}: {error}") from error


def run_fields(pipeline: str, steps: Sequence[Step]) -> dict[str, str]:
    """Record fields with which a pipeline's run is submitted to its first stage."""
    first = steps[0]
    return {
        "pipeline": pipeline,
        "stage": first.stage,
        "plan": msgspec.json.encode(steps).decode(),
        "operation": first.operation,
        "request": first.request,
        "inference_url": first.url,
    }


def result_key(job_id: str, fence: int, claim_id: str) -> str:
    """Where a claim's result lies: no other claim can reach these bytes (G3)."""
    return f"{job_id}/{fence}-{claim_id}/result"


def input_key(job_id: str) -> str:
    """Where a job's input lies."""
    return f"{job_id}/input"
