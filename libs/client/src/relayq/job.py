"""The documents of the HTTP interface, typed. Fields that a newer server adds are kept in ``raw``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

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


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A status document. ``etag`` belongs to exactly this state of it."""

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
    etag: str = ""
    raw: dict[str, Any] = {}

    @property
    def terminal(self) -> bool:
        """Whether a verdict was reached."""
        return self.status in TERMINAL


class JobPage(msgspec.Struct, frozen=True):
    """Newest first; ``cursor`` "" is the end."""

    jobs: list[Job]
    cursor: str = ""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model that a server offers."""

    name: str
    service_type: str
    raw: dict[str, Any] = {}


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
