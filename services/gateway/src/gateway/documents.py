"""The status document, exactly as docs/interface says, and its ETag."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from queuecore.clock import rfc3339
from queuecore.job import JobRecord, Status

_BOOLEANS: Final = {"false": False, "true": True}


def collection(pipeline: str, service_type: str) -> str:
    """Where a client finds jobs of this kind; its parts have letters that need no encoding."""
    return f"pipelines/{pipeline}" if pipeline else f"jobs/{service_type}"


def place_of(record: JobRecord) -> str:
    """The job's collection."""
    return collection(record.pipeline, record.service_type)


def path_of(record: JobRecord) -> str:
    """The job's URL path."""
    return f"/{place_of(record)}/{record.id}"


def status_document(record: JobRecord) -> dict[str, Any]:
    """What a client sees of a job. ``queue_position`` is None here; see ``with_position``."""
    path = path_of(record)
    links = {"self": path}
    if record.status == Status.COMPLETED:
        links["result"] = f"{path}/result"
    elif not record.terminal:
        links["cancel"] = path
    document: dict[str, Any] = {
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
        "started_at": _time(record.history[0].started_at if record.history else record.started_at),
        "finished_at": _time(record.finished_at),
        "expires_at": _time(record.expires_at),
        "error": _error(record),
        "result": _result(record, path),
        "links": links,
    }
    if record.pipeline:
        document |= {"pipeline": record.pipeline, "stage": record.stage, "stages": stages_of(record)}
    return document


def stages_of(record: JobRecord) -> list[dict[str, Any]]:
    """Each stage of a pipeline's run: those behind it, the one where it stands, those before it (``waiting``)."""
    past = {one.stage: one for one in record.history}
    found: list[dict[str, Any]] = []
    for step in record.plan:
        behind = past.get(step.stage)
        here = step.stage == record.stage
        if behind is not None:
            counts, times = (behind.attempts, behind.reaps, behind.failures), (
                behind.queued_at, behind.started_at, behind.finished_at,
            )  # fmt: skip
        elif here:
            counts = record.claims, record.reaps, record.failures
            times = record.waiting_since or record.created_at, record.started_at, record.finished_at
        else:
            counts, times = (0, 0, 0), (None, None, None)
        found.append({
            "stage": step.stage,
            "operation": step.operation,
            "status": "completed" if behind is not None else record.status if here else "waiting",
            "attempts": counts[0],
            "reaps": counts[1],
            "failures": counts[2],
            "queued_at": _time(times[0]),
            "started_at": _time(times[1]),
            "finished_at": _time(times[2]),
        })  # fmt: skip
    return found


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
