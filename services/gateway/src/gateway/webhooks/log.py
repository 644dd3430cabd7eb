"""What came of attempts: the delivery log as operators see it."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.webhooks.deliver import Answer
from queuecore.clock import rfc3339
from queuecore.notice import Attempt, Notice


def attempt_of(answer: Answer, outcome: str, at_ms: int) -> Attempt:
    """One line of the log."""
    return Attempt(
        at=at_ms, outcome=outcome, status=answer.status, error=answer.error, address=answer.address,
        seconds=answer.seconds, answer=answer.excerpt,
    )  # fmt: skip


def notice_document(notice: Notice) -> dict[str, Any]:
    """A notice in a list."""
    return {
        "event_id": notice.event_id,
        "job_id": notice.job_id,
        "model": notice.model,
        "tenant": notice.tenant,
        "url": notice.url,
        "status": notice.status,
        "attempts": notice.attempts,
        "planned_at": rfc3339(notice.planned_at),
        "next_at": None if notice.next_at is None else rfc3339(notice.next_at),
        "last_error": notice.last_error or None,
    }


def notice_detail(notice: Notice) -> dict[str, Any]:
    """A notice with what is sent and every attempt."""
    log = [
        {
            "at": rfc3339(one.at), "outcome": one.outcome, "http_status": one.status, "error": one.error or None,
            "address": one.address or None, "seconds": one.seconds, "answer": one.answer or None,
        }
        for one in notice.log
    ]  # fmt: skip
    return notice_document(notice) | {"body": msgspec.json.decode(notice.body), "log": log}
