"""The names of everything that is observed, as data: events of the log, metrics and their labels.

``docs/metrics.md`` is made from ``metrics_table()``; ``metrics.py`` makes each metric of ``METRICS`` once. Nothing else
in the product may invent a name: tests compare both directions.

Labels are bounded. ``model`` comes from models.yaml, the others from the lists in ``LABELS``; job ids, tenants,
callers and URLs are never labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal, NamedTuple


class Event(StrEnum):
    """``event`` of a log line: noun.participle. One line per transition at INFO."""

    CLAIM_LOST = "claim.lost"
    CONFIGURATION_REFUSED = "configuration.refused"
    CONNECTION_LOST = "connection.lost"
    CONNECTION_RESTORED = "connection.restored"
    DEATH_NOTICED = "death.noticed"
    DEATH_DOUBTED = "death.doubted"
    DRAIN_STARTED = "drain.started"
    ENTRY_DROPPED = "entry.dropped"
    GATE_FAILED = "gate.failed"
    GATE_REFUSED = "gate.refused"
    GRACE_STARTED = "grace.started"
    INFERENCE_AWAITED = "inference.awaited"
    INFERENCE_READY = "inference.readied"
    JOB_CANCELLED = "job.cancelled"
    JOB_CLAIMED = "job.claimed"
    JOB_COMPLETED = "job.completed"
    JOB_DROPPED = "job.dropped"
    JOB_EXPIRED = "job.expired"
    JOB_FAILED = "job.failed"
    JOB_REAPED = "job.reaped"
    JOB_RECONCILED = "job.reconciled"
    JOB_REDRIVEN = "job.redriven"
    JOB_RELEASED = "job.released"
    JOB_RETRIED = "job.retried"
    JOB_REVOKED = "job.revoked"
    JOB_SUBMITTED = "job.submitted"
    LIBRARY_LOGGED = "library.logged"
    OBJECT_SWEPT = "object.swept"
    PASS_FAILED = "pass.failed"  # noqa: S105  an event, not a password
    PASS_RESTORED = "pass.restored"  # noqa: S105  an event, not a password
    QUEUE_FORGOTTEN = "queue.forgotten"
    QUEUE_EMPTY = "queue.emptied"
    QUEUE_PAUSED = "queue.paused"
    QUEUE_PURGED = "queue.purged"
    QUEUE_RESUMED = "queue.resumed"
    REQUEST_REFUSED = "request.refused"
    SERVER_CHECKED = "server.checked"
    SERVICE_FAILED = "service.failed"
    SERVICE_STARTED = "service.started"
    SERVICE_STOPPED = "service.stopped"
    STAGE_COMPLETED = "stage.completed"
    SPANS_DROPPED = "span.dropped"
    VERDICT_DELAYED = "verdict.delayed"
    VERDICT_RELAYED = "verdict.relayed"
    WEBHOOK_DELIVERED = "webhook.delivered"
    WEBHOOK_PARKED = "webhook.parked"
    WEBHOOK_REDRIVEN = "webhook.redriven"
    WEBHOOK_RETRIED = "webhook.retried"
    WEBHOOK_STOPPED = "webhook.stopped"


Kind = Literal["counter", "gauge", "histogram"]

# Seconds: from a no-op job to the hour that the default execution limit allows. The OpenTelemetry advice stops at 10 s.
LONG_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600)
SHORT_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SMALL_COUNTS: Final = (1, 2, 3, 4, 5, 8)


class Metric(NamedTuple):
    """``name`` is what /metrics shows (a histogram adds `_bucket`, `_sum` and `_count`)."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    text: str
    service: str
    buckets: tuple[float, ...] = ()
    later: str = ""  # the part of the product that will observe it, where that is not built yet


LABELS: Final[Mapping[str, str]] = {
    "error_code": "code of the failure: one of queuecore.job.ErrorCode",
    "kind": "what was removed from the store: unrecorded, superseded or unfinished",
    "method": "HTTP method",
    "model": "a key of models.yaml",
    "outcome": "how it ended; the values stand in the metric's text",
    "pass": "reap, death, revoke, promote, expire, sweep, reconcile, depth, memory or store",
    "reason": "code of the problem document",
    "route": "the route's template, never the path that was asked for",
    "service": "gateway, relay or reaper",
    "state": "pending, processing; for relayq_queue_jobs also delayed, paused, ordered, deadletter, outbox",
    "status": "HTTP status",
    "task": "a background task's name",
    "verb": "renew, complete, fail or release",
    "version": "version of the distribution",
}

METRICS: Final[tuple[Metric, ...]] = (
    # -- names of the seeds, exact
    Metric(
        "gatewai_async_jobs_reaped_total", "counter", ("model", "outcome"),
        "Processing entries that the reaper took back: requeued, deadletter or dropped.", "reaper",
    ),
    Metric(
        "gatewai_relay_queue_orphans_swept_total", "counter", ("model", "state"),
        "Queue entries removed because their record was gone.", "reaper",
    ),
    Metric(
        "gatewai_relay_queue_depth", "gauge", ("model", "state"),
        "Jobs waiting and running, as KEDA counts them. Each reaper shows the same truth: use max(), not sum().",
        "reaper",
    ),
    Metric(
        "async_claim_depth", "gauge", ("model",),
        "Sorted-set transport: claimed jobs. Use max(), not sum().", "reaper",
    ),
    Metric(
        "async_claims_expired_total", "counter", ("model",),
        "Sorted-set transport: redeliveries; spikes mean crashes or leases that are too short.", "reaper",
    ),
    Metric(
        "async_duplicate_results_suppressed_total", "counter", ("model",),
        "Results refused because their job had its verdict, counted by the scripts of every transport. Each reaper "
        "shows the same truth since the queue began: use max(), not sum().", "reaper",
    ),
    # -- jobs, observed by the gateway: from submissions and, durably, from the outbox's verdicts
    Metric("relayq_jobs_submitted_total", "counter", ("model",), "Jobs accepted.", "gateway"),
    Metric("relayq_submissions_refused_total", "counter", ("reason",), "Submissions refused.", "gateway"),
    Metric(
        "relayq_cache_requests_total", "counter", ("route", "outcome"),
        "Requests that a kept answer could serve: hit or miss.", "gateway",
    ),
    Metric("relayq_upload_bytes_total", "counter", ("model",), "Bytes of accepted inputs.", "gateway"),
    Metric(
        "relayq_jobs_finished_total", "counter", ("model", "outcome"),
        "Verdicts: completed, failed, cancelled or expired.", "gateway",
    ),
    Metric("relayq_jobs_failed_total", "counter", ("model", "error_code"), "Failed verdicts by cause.", "gateway"),
    Metric(
        "relayq_queue_wait_seconds", "histogram", ("model",), "From submission to the last claim.", "gateway",
        LONG_SECONDS,
    ),
    Metric(
        "relayq_processing_seconds", "histogram", ("model",), "From the last claim to the verdict.", "gateway",
        LONG_SECONDS,
    ),
    Metric(
        "relayq_end_to_end_seconds", "histogram", ("model",), "From submission to the verdict.", "gateway",
        LONG_SECONDS,
    ),
    Metric(
        "relayq_job_attempts", "histogram", ("model",), "Claims a finished job needed.", "gateway", SMALL_COUNTS
    ),
    # -- the gateway's edges
    Metric(
        "relayq_http_requests_total", "counter", ("method", "route", "status"), "Requests answered.", "gateway"
    ),
    Metric(
        "relayq_http_request_seconds", "histogram", ("method", "route"),
        "From the request's head to the answer's end.", "gateway", SHORT_SECONDS,
    ),
    Metric(
        "relayq_seed_completions_total", "counter", ("model", "outcome"),
        "Completions that relays of the seed's protocol published: applied, refused or malformed.", "gateway",
    ),
    Metric("relayq_waiters", "gauge", (), "Clients that wait for a change of a job now.", "gateway"),
    Metric(
        "relayq_webhook_deliveries_total", "counter", ("outcome",),
        "Attempts: delivered, refused (410), retried, parked or blocked (address not allowed).", "gateway",
    ),
    Metric(
        "relayq_webhooks_parked", "gauge", (), "Notices given up, waiting for redelivery by hand.", "gateway",
    ),
    # -- safety nets: how often each was needed
    Metric(
        "relayq_fenced_refusals_total", "counter", ("model", "verb"),
        "Calls of owners that had lost their claim: refused, nothing written.", "relay",
    ),
    Metric(
        "relayq_lease_renewals_total", "counter", ("model", "outcome"),
        "Renewals: renewed, lost (the claim is somebody else's) or failed (no answer).", "relay",
    ),
    Metric(
        "relayq_runs_total", "counter", ("model", "outcome"),
        "Runs of this process: a status, or lost or released.", "relay",
    ),
    # -- queues, observed by the reaper
    Metric(
        "relayq_queue_jobs", "gauge", ("model", "state"),
        "Jobs by state, those included that KEDA does not see; dead letters and undelivered verdicts too. Use max().",
        "reaper",
    ),
    Metric(
        "relayq_oldest_pending_age_seconds", "gauge", ("model",),
        "Age of the oldest waiting job; 0 when none waits. The best alert there is. Use max().", "reaper",
    ),
    Metric("relayq_queue_paused", "gauge", ("model",), "1 while an operator or the breaker pauses it.", "reaper"),
    Metric(
        "relayq_outbox_age_seconds", "gauge", ("model",),
        "Age of the oldest verdict that no gateway has taken; 0 when none waits. Use max().", "reaper",
    ),
    Metric(
        "relayq_death_notices_total", "counter", ("model", "outcome"),
        "Owners whose connection is gone: requeued, deadletter, cancelled; live or skipped if they came back in time.",
        "reaper",
    ),
    Metric(
        "relayq_reconciled_total", "counter", ("model", "outcome"), "Live jobs found in no structure.", "reaper"
    ),
    Metric("relayq_revoked_total", "counter", ("model",), "Jobs ended past their execution limit.", "reaper"),
    Metric("relayq_expired_total", "counter", ("model",), "Jobs that waited too long, ended by this reaper.", "reaper"),
    Metric(
        "relayq_gate_refusals_total", "counter", ("model", "outcome"),
        "Claims that a gate refused: wait, drop (the job failed) or fault (the gate could not say). Counted by the "
        "scripts; each reaper shows the same truth since the queue began: use max(), not sum().", "reaper",
    ),
    Metric("relayq_promoted_total", "counter", ("model",), "Delayed jobs that became due.", "reaper"),
    Metric("relayq_objects_swept_total", "counter", ("kind",), "Objects removed from the store.", "reaper"),
    Metric(
        "relayq_reap_held", "gauge", ("model",),
        "1 while nothing of the model is reaped, after a restart of Redis or an outage.", "reaper",
    ),
    Metric(
        "relayq_pass_last_success_timestamp_seconds", "gauge", ("pass",),
        "Unix time of the last pass over all models without an error, 0 before it: a reaper that stopped must alert.",
        "reaper",
    ),
    Metric("relayq_redis_used_memory_bytes", "gauge", (), "Memory that the queue's server uses.", "reaper"),
    Metric(
        "relayq_redis_maxmemory_bytes", "gauge", (),
        "Its maxmemory: at it submissions are refused; 0 where it has none or does not say.", "reaper",
    ),
    Metric("relayq_pass_failures_total", "counter", ("pass",), "Passes that failed for a model.", "reaper"),
    Metric("relayq_pass_seconds", "histogram", ("pass",), "Time of one pass over all models.", "reaper", SHORT_SECONDS),
    # -- every process
    Metric(
        "relayq_task_age_seconds", "gauge", ("task",),
        "Seconds since a background task last went round; grows when the task hangs or died.", "all",
    ),
    Metric("relayq_build_info", "gauge", ("service", "version"), "1; its labels say what runs.", "all"),
)  # fmt: skip


def metrics_table() -> str:
    """Every metric and label in Markdown: ``docs/metrics.md`` below its title."""
    lines = [
        "Ports 9101 (gateway), 9102 (relay), 9103 (reaper), path `/metrics`.",
        "",
        "Outcomes of jobs are counted by the gateway from durable verdicts, so one-shot relays need no push gateway.",
        "A verdict is counted once over all gateways: `sum(increase(…))`. Every reaper shows the same depths: `max`.",
        "",
        "| metric | type | labels | shown by | meaning |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels) or 'none'} "
        f"| {metric.service} | {metric.text}{f' Not observed yet: {metric.later}.' if metric.later else ''} |"
        for metric in METRICS
    ]
    lines += ["", "| label | values |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in LABELS.items()]
    return "\n".join(lines) + "\n"
