"""A verdict as a notice: the body is made once and kept, so that every attempt sends the same bytes."""

from __future__ import annotations

import msgspec

from gateway.documents import status_document
from gateway.webhooks.guard import Allow, Refused, check
from queuecore.broker import OutboxEvent
from queuecore.clock import rfc3339
from queuecore.job import JobRecord
from queuecore.notice import NewNotice


def notice_of(event: OutboxEvent, record: JobRecord) -> NewNotice:
    """What its client is told of this verdict; ``record`` is as it was then."""
    body = {
        "type": f"job.{event.status}",
        "timestamp": rfc3339(event.finished_at),
        "data": status_document(record),
    }
    try:
        target = check(record.callback_url, Allow("0.0.0.0/0 ::/0 http")).name
    except Refused:
        target = "refused"  # the first attempt says why
    return NewNotice(
        event_id=event.event_id,
        job_id=record.id,
        model=record.model,
        tenant=record.tenant,
        url=record.callback_url,
        target=target,
        body=msgspec.json.encode(body).decode(),
        traceparent=record.traceparent,
    )
