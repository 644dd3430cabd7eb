"""Reading records and other replies, whichever protocol they came over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from queuecore.job import JobRecord, Status, record_from_fields
from queuecore.redis import keys as names
from queuecore.redis.client import Link, raise_refusal


def fields_of(flat: Any) -> dict[str, str]:
    """A hash's reply as a mapping: RESP2 gives a flat list, RESP3 a dict."""
    if isinstance(flat, Mapping):
        return dict(flat)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def tolerant_record(fields: Mapping[str, str]) -> JobRecord:
    """The record, or what of it can be read: one damaged record must not stop a loop (case C9)."""
    try:
        return record_from_fields(fields)
    except ValueError:
        return JobRecord(id=fields.get("id", ""), status=fields.get("status", Status.PENDING))


async def read_records(link: Link, job_ids: Sequence[str]) -> dict[str, JobRecord | None]:
    """The records of many jobs in one round trip; None where there is none.

    Raises:
        BrokerUnavailable: the server would not say. None must mean "gone": objects are deleted on it.
    """
    rows = await link.pipeline([("HGETALL", names.job(job_id)) for job_id in job_ids])
    return {job_id: _record_of(job_id, row) for job_id, row in zip(job_ids, rows, strict=True)}


def _record_of(job_id: str, row: Any) -> JobRecord | None:
    if isinstance(row, ResponseError):
        raise_refusal("HGETALL", row)
        return JobRecord(id=job_id, status=Status.PENDING)  # a key of another type: damaged, and not gone
    return tolerant_record({"id": job_id} | fields_of(row)) if row else None


async def server_ms(link: Link) -> int:
    """The server's clock."""
    seconds, micros = await link.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def scored(flat: Any) -> list[tuple[str, float]]:
    """A zset's reply WITHSCORES as pairs."""
    if flat and isinstance(flat[0], list):  # RESP3
        return [(one, float(score)) for one, score in flat]
    return [(one, float(score)) for one, score in zip(flat[::2], flat[1::2], strict=True)]
