"""Every call of the public interface as a flow, from arguments to typed answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias, TypedDict
from urllib.parse import quote

import msgspec

from queuecore.clock import monotonic
from relayq.download import Download
from relayq.errors import NotFound, UnexpectedAnswer, WaitTimeout
from relayq.exchange import Exchange, Flow, Patience, Pause, accepted, exchanged, retry_after_seconds
from relayq.job import Job, JobPage, Model, Pipeline, ResultFacts, job_of, place_of
from relayq.upload import AsyncSource, Progress, Upload, multipart

POLL_SECONDS: Final = 30
NOT_MODIFIED: Final = 304
Moment: TypeAlias = datetime | str


class SubmitOptions(TypedDict, total=False):
    """What may go with a file. ``None`` is the same as leaving it out."""

    model: str | None  # the service type's only or default model otherwise
    operation: str | None
    params: Mapping[str, Any] | None  # passed on to the inference server
    priority: bool | str | None
    not_before: Moment | None
    deadline: Moment | None
    ordering_key: str | None  # jobs of one key run one after the other
    callback_url: str | None
    content_class: str | None  # of a queue ordered by priority
    dedup_key: str | None  # names the item; who names it again is answered with the first job
    force: bool  # take the item again
    fresh: bool  # run although a result of the same request is kept
    idempotency_key: str | None  # a repeat with the same key gives the same job; made when left out, "" = none
    filename: str | None
    content_type: str | None
    progress: Progress | None  # called with (sent bytes, size) as the file goes out


def submit(file: AsyncSource, place: str | None, patience: Patience, options: SubmitOptions) -> Flow[Job]:
    """``POST /jobs/{service_type}`` or ``POST /pipelines/{pipeline}``."""
    if place is None:
        raise ValueError("service_type or pipeline: one of them says what is to be done")
    upload = Upload.of(file, filename=options.get("filename"), content_type=options.get("content_type"))
    priority, params, key = options.get("priority"), options.get("params"), options.get("idempotency_key")
    if key is None:
        key = new_idempotency_key()
    named = {
        "model": options.get("model"),
        "operation": options.get("operation"),
        "params": json.dumps(dict(params), ensure_ascii=False, allow_nan=False) if params else None,
        "priority": str(priority).lower() if isinstance(priority, bool) else priority,
        "not_before": _moment("not_before", options.get("not_before")),
        "deadline": _moment("deadline", options.get("deadline")),
        "ordering_key": options.get("ordering_key"),
        "callback_url": options.get("callback_url"),
        "content_class": options.get("content_class"),
        "dedup_key": options.get("dedup_key"),
        "force": "true" if options.get("force") else None,
    }
    fields = {name: value for name, value in named.items() if value is not None}
    headers = {"idempotency-key": key} if key else {}
    if options.get("fresh"):
        headers["cache-control"] = "no-cache"
    request = Exchange(
        "POST",
        place,
        headers=headers,
        body=multipart(fields, upload, options.get("progress")),
        key=key,
        repeatable=bool(key) and upload.repeatable,
    )
    reply = accepted((yield from exchanged(request, patience)))
    job = job_of(reply.json(), reply.headers.get("etag", ""))
    return msgspec.structs.replace(job, reused=reply.headers.get("x-cache") == "hit")


def new_idempotency_key() -> str:
    """A key that nobody else has."""
    return secrets.token_hex(16)


def status(job_id: str, place: str | None, patience: Patience) -> Flow[Job]:
    """``GET {place}/{id}``; without a place, each service type and pipeline of the server's is asked."""
    if place is not None:
        reply = accepted((yield from exchanged(Exchange("GET", _path(job_id, place)), patience)))
        return job_of(reply.json(), reply.headers.get("etag", ""))
    missing: NotFound | None = None
    offered, pipelines = yield from offer(patience)
    places = [place_of(model.service_type, None) for model in offered] + [place_of(None, one.name) for one in pipelines]
    for one in dict.fromkeys(places):
        try:
            return (yield from status(job_id, one, patience))
        except NotFound as error:
            missing = error
    if missing is None:
        raise UnexpectedAnswer("the server offers no model, so no place to look for the job in")
    raise missing


def wait(
    job_id: str,
    place: str | None,
    timeout_seconds: float | None,
    patience: Patience,
    on_change: Callable[[Job], None] | None = None,
) -> Flow[Job]:
    """Long polls until a verdict; ``on_change`` is given every document on the way, the first and the last too.

    Raises:
        WaitTimeout: none within ``timeout_seconds``.
    """
    end = None if timeout_seconds is None else monotonic() + timeout_seconds
    job = yield from status(job_id, place, patience)
    path = _path(job.job_id, job.place)
    if on_change is not None:
        on_change(job)
    while not job.terminal:
        left = POLL_SECONDS if end is None else end - monotonic()
        if left <= 0:
            assert timeout_seconds is not None  # noqa: S101  only then there is an end
            raise WaitTimeout(job, timeout_seconds)
        hold = min(POLL_SECONDS, max(1, round(left)))
        headers = {"if-none-match": job.etag} if job.etag else {}
        poll = Exchange("GET", path, query={"wait": str(hold)}, headers=headers, hold_seconds=hold)
        reply = accepted((yield from exchanged(poll, patience)), NOT_MODIFIED)
        if reply.status == NOT_MODIFIED:
            continue
        changed = job_of(reply.json(), reply.headers.get("etag", ""))
        if not changed.terminal and changed.etag == job.etag:  # a server without long polls
            yield Pause(retry_after_seconds(reply.headers) or 1)
        job = changed
        if on_change is not None:
            on_change(job)
    return job


def result(job_id: str, place: str | None, download: Download, patience: Patience) -> Flow[ResultFacts]:
    """``GET …/result`` into ``download``, resumed after breaks and compared with the announced size and SHA-256."""
    job = yield from status(job_id, place, patience)
    path = f"{_path(job.job_id, job.place)}/result"
    facts = job.result or ResultFacts()
    download.size = facts.size
    resumed = download.received_bytes > 0
    if resumed and facts.size is not None:
        if not download.check(facts.size, facts.sha256):
            return facts
        if download.received_bytes >= facts.size:
            download.restart()
    while True:
        _ = accepted((yield from exchanged(Exchange("GET", path, download=download), patience)))
        wrong = download.check(facts.size, facts.sha256)
        if not wrong:
            return facts
        if not resumed:
            raise UnexpectedAnswer(f"the result of job {job.job_id} is damaged: {wrong}")
        resumed = False  # what an earlier run left in the file did not belong to this result
        download.restart()


def cancel(job_id: str, place: str | None, patience: Patience) -> Flow[Job]:
    """``DELETE {place}/{id}``."""
    if place is None:
        place = (yield from status(job_id, None, patience)).place
    reply = accepted((yield from exchanged(Exchange("DELETE", _path(job_id, place)), patience)))
    return job_of(reply.json(), reply.headers.get("etag", ""))


def jobs(query: Mapping[str, str], patience: Patience) -> Flow[JobPage]:
    """One page of ``GET /jobs``."""
    reply = accepted((yield from exchanged(Exchange("GET", "/jobs", query=query), patience)))
    data = reply.json()
    if not isinstance(data, dict) or not isinstance(data.get("jobs"), list):
        raise UnexpectedAnswer("not a page of jobs")
    return JobPage([job_of(item) for item in data["jobs"]], str(data.get("cursor") or ""))


def offer(patience: Patience) -> Flow[tuple[list[Model], list[Pipeline]]]:
    """``GET /models``: what can be asked for."""
    data = accepted((yield from exchanged(Exchange("GET", "/models"), patience))).json()
    listed = data.get("models") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise UnexpectedAnswer("not a list of models")
    try:
        models = [Model(name=str(item["name"]), service_type=str(item["service_type"]), raw=item) for item in listed]
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer("a model without name or service_type") from error
    try:
        return models, msgspec.convert(data.get("pipelines", []), list[Pipeline])
    except msgspec.ValidationError as error:
        raise UnexpectedAnswer(f"not a list of pipelines: {error}") from error


def events_path(job_id: str, place: str | None, patience: Patience) -> Flow[str]:
    """Of the job's event stream."""
    if place is None:
        place = (yield from status(job_id, None, patience)).place
    return f"{_path(job_id, place)}/events"


def _path(job_id: str, place: str) -> str:
    return f"{place}/{quote(job_id, safe='')}"


def _moment(name: str, value: Moment | None) -> str | None:
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise ValueError(f"{name}: a time needs an offset, such as datetime.now(UTC)")
    return value.isoformat()
