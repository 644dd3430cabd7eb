"""The status document, exactly as docs/interface says, and its ETag."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from queuecore.clock import rfc3339
from queuecore.job import JobRecord, Status

_BOOLEANS: Final = {"false": False, "true": True}


def path_of(record: JobRecord) -> str:
    """The job's URL path; both parts have letters that need no encoding."""
    return f"/jobs/{record.service_type}/{record.id}"


def status_document(record: JobRecord) -> dict[str, Any]:
    """What a client sees of a job. ``queue_position`` is None here; see ``with_position``."""
    path = path_of(record)
    links = {"self": path}
    if record.status == Status.COMPLETED:
        links["result"] = f"{path}/result"
    elif not record.terminal:
        links["cancel"] = path
    return {
        "job_id": record.id,
        "service_type": record.service_type,
        "model": record.model,
        "operation": record.operation,
        "status": record.status,
        "cancel_requested": bool(record.cancel_requested),
        "priority": _BOOLEANS.get(record.priority, record.priority),
        "queue_position": None,
        "attempts": record.claims,
        "reaps": record.reaps,
        "created_at": _time(record.created_at),
        "started_at": _time(record.started_at),
        "finished_at": _time(record.finished_at),
        "expires_at": _time(record.expires_at),
        "error": _error(record),
        "result": _result(record, path),
        "links": links,
    }


def etag_of(document: dict[str, Any]) -> str:
    """The document's version. Weak, because the position in the queue changes without making a new one."""
    digest = hashlib.sha256(msgspec.json.encode(document | {"queue_position": None})).hexdigest()
    return f'W/"{digest[:32]}"'


def matches(header: str | None, etag: str) -> bool:
    """Whether an If-None-Match header names this ETag (weak comparison, RFC 9110 §8.8.3.2)."""
    if header is None:
        return False
    wanted = etag.removeprefix("W/")
    return any(one.strip().removeprefix("W/") in {wanted, "*"} for one in header.split(","))


def _error(record: JobRecord) -> dict[str, Any] | None:
    if not record.error_code:
        return None
    return {"code": record.error_code, "message": record.error_message, "http_status": record.http_status}


def _result(record: JobRecord, path: str) -> dict[str, Any] | None:
    if record.status != Status.COMPLETED:
        return None
    return {
        "url": f"{path}/result",
        "size": record.result_size,
        "content_type": record.result_content_type or "application/octet-stream",
        "sha256": record.result_sha256,
    }


def _time(milliseconds: int | None) -> str | None:
    return None if not milliseconds else rfc3339(milliseconds)
