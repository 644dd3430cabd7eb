"""The documents of the HTTP interface, typed. Fields that a newer server adds are kept in ``raw``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec

from relayq.errors import UnexpectedAnswer

TERMINAL: Final = frozenset({"completed", "failed", "cancelled", "expired"})


class Fault(msgspec.Struct, frozen=True):
    """Why a job has no result."""

    code: str
    message: str = ""
    http_status: int | None = None


class ResultFacts(msgspec.Struct, frozen=True):
    """What lies behind ``result``; ``sha256`` is of the bytes, in hex."""

    url: str = ""
    size: int | None = None
    content_type: str = ""
    sha256: str = ""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one stage of a pipeline's run; ``waiting`` before the run comes to it."""

    stage: str
    status: str
    attempts: int = 0
    queued_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A status document. ``etag`` belongs to exactly this state of it; the members of runs are empty for other jobs."""

    job_id: str
    service_type: str
    status: str
    model: str = ""
    operation: str | None = None
    cancel_requested: bool = False
    priority: bool | str = False
    queue_position: int | None = None
    attempts: int = 0
    reaps: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    error: Fault | None = None
    result: ResultFacts | None = None
    pipeline: str | None = None
    stage: str | None = None  # where a run stands
    stages: list[Stage] = []
    deduplicated: bool = False  # of a submission: the item was taken before, by this job
    reused: bool = False  # of a submission: an equal request's job answers it (`X-Cache: hit`)
    etag: str = ""
    raw: dict[str, Any] = {}

    @property
    def terminal(self) -> bool:
        """Whether a verdict was reached."""
        return self.status in TERMINAL

    @property
    def place(self) -> str:
        """The collection that the job is in, as a path."""
        return place_of(self.service_type, self.pipeline) or ""


class JobPage(msgspec.Struct, frozen=True):
    """Newest first; ``cursor`` "" is the end."""

    jobs: list[Job]
    cursor: str = ""


class Pipeline(msgspec.Struct, frozen=True):
    """Stages in order; each is a model."""

    name: str
    stages: list[str] = []


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model that a server offers."""

    name: str
    service_type: str
    raw: dict[str, Any] = {}


def place_of(service_type: str | None, pipeline: str | None) -> str | None:
    """The path of a collection of jobs, the pipeline's if there is one; None when neither is given."""
    if pipeline is not None:
        return f"/pipelines/{quote(pipeline, safe='')}"
    return None if service_type is None else f"/jobs/{quote(service_type, safe='')}"


def job_of(data: object, etag: str = "") -> Job:
    """A status document from its JSON value.

    Raises:
        UnexpectedAnswer: it is not one.
    """
    try:
        job = msgspec.convert(data, Job)
    except msgspec.ValidationError as error:
        raise UnexpectedAnswer(f"not a status document: {error}") from error
    assert isinstance(data, dict)  # noqa: S101  convert made a Job of it
    return msgspec.structs.replace(job, raw=data, etag=etag)
