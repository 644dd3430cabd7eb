"""A record as the story of its job: what has happened, what goes on, what will come."""

from __future__ import annotations

from typing import Literal, NamedTuple

from gateway.console.rendering import duration
from queuecore.broker import FOREIGN
from queuecore.job import JobRecord, PastStage, Status

Kind = Literal["done", "now", "coming", "good", "bad"]


class Moment(NamedTuple):
    """One line of the story. ``at`` is None where the record keeps no time."""

    kind: Kind
    at: int | None
    title: str
    detail: str = ""


def story(record: JobRecord, now_ms: int) -> list[Moment]:
    """Moments in the order of time; the record keeps the last attempt, and only the number of those before it."""
    return [*_past(record), *_present(record), *_future(record, now_ms)]


def _past(record: JobRecord) -> list[Moment]:
    said = f"by {record.tenant}" if record.tenant else ""
    moments = [Moment("done", record.created_at, "Submitted", said)]
    if record.not_before and (record.claims or record.terminal):
        moments.append(Moment("done", record.not_before, "Held back until"))
    if record.generation > 1:
        moments.append(Moment("done", None, "Redriven", f"generation {record.generation}: counters start again"))
    moments += [_stage(one) for one in record.history]
    earlier = record.claims - (record.started_at is not None)
    if earlier > 0 or record.reaps or record.failures:
        moments.append(
            Moment("bad" if record.reaps else "done", None, _plural(earlier, "earlier attempt"), _why(record))
        )
    return moments


def _stage(one: PastStage) -> Moment:
    waited, ran = duration(one.started_at - one.queued_at), duration(one.finished_at - one.started_at)
    lost = f", {_plural(one.reaps, 'worker')} lost" if one.reaps else ""
    detail = f"waited {waited}, ran {ran}, {_plural(one.attempts, 'attempt')}{lost}"
    return Moment("done", one.finished_at, f"Stage {one.stage} completed", detail)


def _present(record: JobRecord) -> list[Moment]:
    moments: list[Moment] = []
    where = f" at stage {record.stage}" if record.stage else ""
    if record.started_at is not None:
        owner = "a relay of the seed protocol" if record.owner == FOREIGN else record.owner or "a relay"
        kind: Kind = "now" if record.status == Status.PROCESSING else "done"
        moments.append(
            Moment(
                kind,
                record.started_at,
                f"Attempt {record.claims} started{where}",
                f"by {owner}, fence {record.fence}",
            )
        )
    if record.status == Status.PENDING:
        moments.append(Moment("now", None, "Waiting", f"for a relay to claim it{where}"))
    if record.cancel_requested and not record.terminal:
        moments.append(Moment("now", None, "Cancel requested", "its relay was told and stops"))
    if record.finished_at is not None:
        moments.append(_verdict(record, record.finished_at))
    return moments


def _verdict(record: JobRecord, at: int) -> Moment:
    if record.status == Status.COMPLETED:
        return Moment("good", at, "Completed", "the result is stored")
    cause = ": ".join(text for text in (record.error_code, record.error_message) if text)
    return Moment("bad" if record.status == Status.FAILED else "done", at, record.status.capitalize(), cause)


def _future(record: JobRecord, now_ms: int) -> list[Moment]:
    coming: list[tuple[int | None, str, str]] = []
    if record.terminal:
        coming.append((record.expires_at, "Removed", "record, input and result"))
    else:
        waits = record.status == Status.PENDING and (record.not_before or 0) > now_ms
        coming += [
            (record.not_before if waits else None, "Eligible", "held back until then"),
            (record.lease_until, "Lease ends", "unless its relay renews it; then the job goes to another"),
            (record.execute_until, "Execution limit", "the attempt fails then"),
            (record.deadline, "Deadline", "the job expires if it has not started"),
        ]
    known = (Moment("coming", at, title, text) for at, title, text in coming if at)
    return [*sorted(known, key=lambda one: one.at or 0), *_later_stages(record)]


def _later_stages(record: JobRecord) -> list[Moment]:
    if record.terminal:
        return []
    names = [step.stage for step in record.plan]
    return [Moment("coming", None, f"Stage {name}") for name in names[names.index(record.stage) + 1 :]] if names else []


def _why(record: JobRecord) -> str:
    parts = [
        _plural(record.reaps, "worker") + " lost" if record.reaps else "",
        _plural(record.failures, "failure") + " retried" if record.failures else "",
        f"last exit: {record.last_exit}" if record.last_exit else "",
    ]
    return "; ".join(part for part in parts if part)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
