"""A verdict as a notice: the body is made once and kept, so that every attempt sends the same bytes."""

from __future__ import annotations

import msgspec

from gateway.documents import status_document
from gateway.webhooks.guard import Allow, Refused, check
from queuecore.broker import OutboxEvent
from queuecore.clock import rfc3339
from queuecore.job import JobRecord
from queuecore.notice import NewNotice


def notice_of(event: OutboxEvent, record: JobRecord) -> NewNotice | None:
    """What its client is told of this verdict; None when it did not ask to be told."""
    if not record.callback_url:
        return None
    if record.event_id != event.event_id:
        # Redriven since: the record is of the next generation, the verdict was of this one.
        record = msgspec.structs.replace(record, status=event.status, finished_at=event.finished_at)
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
    )
