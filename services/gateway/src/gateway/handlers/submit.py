"""``POST /jobs/{service_type}``."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge import Edge, edge_of, place_asked
from gateway.handlers.waiting import submitted
from gateway.idempotency import Hold, fingerprint, held, key_of
from gateway.keyfile import Caller
from gateway.problems import Refusal
from gateway.requests import Options, traceparent
from gateway.reuse import directives, keeps_results, reuse_of
from gateway.tokens import estimate
from gateway.uploads import Accepted, Disconnected, Head, Intake, Limits
from queuecore import clock
from queuecore.blobs import BlobStore
from queuecore.broker import Broker, NewJob, Submitted
from queuecore.errors import (
    BlobError,
    BrokerError,
    BrokerUnavailable,
    DuplicateItem,
    JobError,
    OutcomeUnknown,
    QueueCoreError,
    QueueFull,
    ReservationLost,
    ResultReused,
)
from queuecore.job import JobRecord, input_key, run_fields
from queuecore.names import new_job_id
from queuecore.reservation import Answered, Scope
from queuecore.telemetry import logs, metrics
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

SUBMIT_PAUSES_SECONDS: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
EARLY_ADMISSION_BYTES: Final = 1_048_576
CACHED: Final = "/jobs/{service_type}"


class Origin(NamedTuple):
    """Where a submission comes from, when it began, and what it asked of caches."""

    caller: Caller
    traceparent: str
    began_ns: int
    cache_control: frozenset[str]


async def submit(request: Request) -> Response:
    """Stream the body to the store, then submit the job."""
    edge = edge_of(request)
    try:
        return await _submit(edge, request)
    except DuplicateItem as duplicate:
        metrics.SUBMISSIONS_REFUSED.labels(duplicate.code).inc()
        try:
            record = await edge.reader.get(duplicate.job_id)
        except JobError:  # its retention ended before the item's window: there is only its name to tell
            raise duplicate from None
        return await submitted(edge, request, record, duplicate=True)
    except ResultReused as reused:
        try:
            record = await edge.reader.get(reused.job_id)
        except JobError:  # erased in this instant; the next such request runs
            raise reused from None
        metrics.CACHE_REQUESTS.labels(CACHED, "hit").inc()
        return await submitted(edge, request, record, cache="hit")
    except Disconnected:
        _log.info("the client went away before its upload was whole", extra={"event": Event.REQUEST_REFUSED})
        metrics.SUBMISSIONS_REFUSED.labels("client_disconnected").inc()
        return Response(status_code=400)  # nobody is there to read it
    except Refusal as refusal:
        metrics.SUBMISSIONS_REFUSED.labels(refusal.code).inc()
        raise
    except QueueCoreError as error:
        metrics.SUBMISSIONS_REFUSED.labels(error.code).inc()
        raise


async def _submit(edge: Edge, request: Request) -> Response:
    began_ns = clock.wall_ns()
    caller = await edge.caller(request, "submit")
    key = key_of(request.headers)
    options = Options(
        edge.config,
        request.path_params.get("service_type", ""),
        pipeline=request.path_params.get("pipeline"),
        priority_field=bool(edge.settings.priority_header) or (bool(caller.key) and "priority" in caller.rights),
        allow=edge.allow,
    )
    options.add_query(request.scope["query_string"])
    head = _head(edge, request)
    intake = Intake(request.receive, head, options, _limits(edge))
    origin = Origin(caller, traceparent(request.headers.get("traceparent")), began_ns, directives(request))
    if key is None:
        await _admit(edge, options, head)
        record = await _accept(edge, intake, origin, None)
    else:
        scope = Scope(caller.tenant, place_asked(request), key)
        async with held(edge.reservations, scope) as hold:
            if hold.answer is not None:
                return await _replay(edge, request, intake, hold.answer)
            await _admit(edge, options, head)
            record = await _accept(edge, intake, origin, hold)
    if not keeps_results(edge.config.models[record.model]):
        return await submitted(edge, request, record)
    metrics.CACHE_REQUESTS.labels(CACHED, "miss").inc()
    return await submitted(edge, request, record, cache="miss")


async def _replay(edge: Edge, request: Request, intake: Intake, answer: Answered) -> Response:
    """What became of the first request under this key, if this one is the same.

    Raises:
        Refusal: 422, it is another request.
    """
    async with aclosing(intake.source()) as source:
        async for _ in source:  # read to its end: only a whole request can be compared
            pass
    if fingerprint(_whole(intake)) != answer.fingerprint:
        raise Refusal(
            422,
            "idempotency_key_reused",
            "this Idempotency-Key was used for another request; its file or options differ",
        )
    try:
        record = await edge.reader.get(answer.job_id)
    except JobError as error:  # its retention ended just now, and the key with it
        raise ReservationLost("the job of this Idempotency-Key is gone; the key is free") from error
    return await submitted(edge, request, record, replay=True)


def _whole(intake: Intake) -> Accepted:
    if intake.accepted is None:
        raise RuntimeError("the upload was not read to its end")
    return intake.accepted


async def _accept(edge: Edge, intake: Intake, origin: Origin, hold: Hold | None) -> JobRecord:
    """Stream the file to the store and submit its job."""
    await edge.budgets.before_upload(origin.caller)
    job_id = new_job_id()
    key = input_key(job_id)
    async with aclosing(intake.source()) as source:
        _ = await edge.store.put(key, source)
    accepted = _whole(intake)
    await edge.budgets.uploaded(origin.caller, accepted.size)
    model = accepted.submission.model
    with edge.tracer.start(
        "submit", model, job_id=job_id, parent=origin.traceparent, started_ns=origin.began_ns
    ) as span:
        fields = _fields(accepted, origin.caller.tenant, key) | {"traceparent": span.traceparent}
        record = await _record(edge, job_id, accepted, fields, hold=hold, origin=origin)
    metrics.JOBS_SUBMITTED.labels(model).inc()
    edge.rates[model].submitted.tick()
    metrics.UPLOAD_BYTES.labels(model).inc(accepted.size)
    with logs.bound(trace_id=span.trace_id):
        _log.info(
            "job submitted",
            extra={"event": Event.JOB_SUBMITTED, "job_id": job_id, "model": model, "input_bytes": accepted.size},
        )
    return record


def _head(edge: Edge, request: Request) -> Head:
    headers = request.headers
    types = headers.getlist("content-type")
    if len(types) > 1:
        raise Refusal(400, "invalid_request", "Content-Type: given twice")
    length = headers.get("content-length", "")
    priority = edge.settings.priority_header
    return Head(
        content_type=types[0] if types else None,
        content_length=int(length) if length.isascii() and length.isdigit() else None,
        disposition=headers.get("content-disposition"),
        priority_header=bool(priority) and priority in headers,
    )


def _limits(edge: Edge) -> Limits:
    settings = edge.settings
    return Limits(settings.max_upload_bytes, settings.max_json_bytes, settings.upload_idle_seconds)


async def _admit(edge: Edge, options: Options, head: Head) -> None:
    """Refuse a large body for a full queue before it is sent; ``submit`` itself decides for all others.

    Raises:
        QueueFull
    """
    if head.content_length is not None and head.content_length < EARLY_ADMISSION_BYTES:
        return
    name = options.only_model()
    if name is None:
        return
    counts = await edge.brokers[name].counts()
    limit = edge.brokers[name].limits.max_pending
    if counts.pending + counts.delayed + counts.paused + counts.ordered >= limit:
        raise QueueFull(name, limit)


def _fields(accepted: Accepted, tenant: str, key: str) -> dict[str, str]:
    submission = accepted.submission
    return {
        "tenant": tenant,
        "service_type": submission.service_type,
        "operation": submission.operation_name,
        "request": submission.operation.request,
        "inference_url": submission.operation.url,
        "input_key": key,
        "input_size": str(accepted.size),
        "input_sha256": accepted.sha256,
        "input_filename": accepted.filename,
        "input_content_type": accepted.content_type,
        "params": submission.params,
        "content_class": submission.content_class,
        "tokens_estimate": estimate(submission.params),
        "callback_url": submission.callback_url,
    } | (run_fields(submission.pipeline, submission.steps) if submission.steps else {})


async def _record(
    edge: Edge, job_id: str, accepted: Accepted, fields: dict[str, str], *, hold: Hold | None, origin: Origin
) -> JobRecord:
    submission = accepted.submission
    broker = edge.brokers[submission.model]
    job = NewJob(
        id=job_id,
        fields=fields,
        priority=submission.priority,
        not_before=submission.not_before,
        deadline=submission.deadline,
        ordering_key=submission.ordering_key,
        reservation=hold.reservation(accepted) if hold else None,
        dedup=submission.dedup,
        reuse=reuse_of(accepted, origin.caller.tenant, origin.cache_control),
        tenant_cap=origin.caller.limits.pending_jobs,
    )
    try:
        made = await submit_surely(broker, job)
    except OutcomeUnknown:
        raise  # the job may be there and needs its input; if it is not, the sweeper finds the object
    except QueueCoreError:
        await _delete(edge.store, fields["input_key"])
        raise
    if not made.created:  # a repeat after a lost reply: somebody may run it already
        try:
            return await broker.get(job_id)
        except BrokerError:
            # The job is accepted: say so, with what is known here. Its id tells when it was made.
            made = made._replace(created_at=int(job_id.replace("-", "")[:12], 16))
    return JobRecord(
        id=job_id,
        status=made.status,
        tenant=fields["tenant"],
        service_type=submission.service_type,
        model=submission.model,
        operation=submission.operation_name,
        priority=submission.priority,
        created_at=made.created_at,
        pipeline=submission.pipeline,
        stage=submission.model if submission.pipeline else "",
        plan=submission.steps,
    )


async def submit_surely(broker: Broker, job: NewJob) -> Submitted:
    """Submit, repeating what did not run or may have run: a repeat of the same id has no second effect (G11).

    Raises:
        OutcomeUnknown: it may have run.
        BrokerUnavailable, QueueFull, ReservationLost: it did not run.
    """
    unknown: OutcomeUnknown | None = None
    for pause_seconds in (*SUBMIT_PAUSES_SECONDS, None):
        try:
            return await broker.submit(job)
        except OutcomeUnknown as error:
            unknown = error
        except BrokerUnavailable as error:
            if pause_seconds is None:
                raise unknown or error from error
        if pause_seconds is not None:
            await clock.sleep(pause_seconds)
    assert unknown is not None  # noqa: S101  the last round returned, raised or met this
    raise unknown


async def _delete(store: BlobStore, key: str) -> None:
    try:
        await store.delete(key)
    except BlobError as error:
        _log.warning("a refused job's input stays for the sweeper: %s", error, extra={"event": Event.REQUEST_REFUSED})
