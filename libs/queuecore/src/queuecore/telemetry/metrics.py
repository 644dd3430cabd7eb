"""Every Prometheus metric of the product, made once from ``names.METRICS``.

Use: ``metrics.JOBS_SUBMITTED.labels(model).inc()``. Label values are given by position, in the order of the table, for
one label is called ``pass``. Importing this costs some 60 ms: the relay does it after its claim has been asked for.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

from queuecore.telemetry.names import METRICS, Kind, Metric

# The exposition holds the documented names and no `…_created` beside them.
disable_created_metrics()

_by_name: Final = {metric.name: metric for metric in METRICS}


def _take(name: str, kind: Kind) -> Metric:
    metric = _by_name.pop(name)
    if metric.kind != kind:
        raise TypeError(f"{name} is a {metric.kind}")
    return metric


def _counter(name: str) -> Counter:
    metric = _take(name, "counter")
    # The library takes a counter's name with or without `_total` and always shows it with.
    return Counter(metric.name, metric.text, metric.labels)


def _gauge(name: str) -> Gauge:
    metric = _take(name, "gauge")
    return Gauge(metric.name, metric.text, metric.labels)


def _histogram(name: str) -> Histogram:
    metric = _take(name, "histogram")
    return Histogram(metric.name, metric.text, metric.labels, buckets=metric.buckets)


JOBS_REAPED: Final = _counter("gatewai_async_jobs_reaped_total")
ORPHANS_SWEPT: Final = _counter("gatewai_relay_queue_orphans_swept_total")
QUEUE_DEPTH: Final = _gauge("gatewai_relay_queue_depth")
CLAIM_DEPTH: Final = _gauge("async_claim_depth")
CLAIMS_EXPIRED: Final = _counter("async_claims_expired_total")
DUPLICATE_RESULTS_SUPPRESSED: Final = _counter("async_duplicate_results_suppressed_total")

JOBS_SUBMITTED: Final = _counter("relayq_jobs_submitted_total")
SUBMISSIONS_REFUSED: Final = _counter("relayq_submissions_refused_total")
CACHE_REQUESTS: Final = _counter("relayq_cache_requests_total")
UPLOAD_BYTES: Final = _counter("relayq_upload_bytes_total")
JOBS_FINISHED: Final = _counter("relayq_jobs_finished_total")
JOBS_FAILED: Final = _counter("relayq_jobs_failed_total")
QUEUE_WAIT_SECONDS: Final = _histogram("relayq_queue_wait_seconds")
PROCESSING_SECONDS: Final = _histogram("relayq_processing_seconds")
END_TO_END_SECONDS: Final = _histogram("relayq_end_to_end_seconds")
JOB_ATTEMPTS: Final = _histogram("relayq_job_attempts")

HTTP_REQUESTS: Final = _counter("relayq_http_requests_total")
HTTP_REQUEST_SECONDS: Final = _histogram("relayq_http_request_seconds")
SEED_COMPLETIONS: Final = _counter("relayq_seed_completions_total")
WAITERS: Final = _gauge("relayq_waiters")
WEBHOOK_DELIVERIES: Final = _counter("relayq_webhook_deliveries_total")
WEBHOOKS_PARKED: Final = _gauge("relayq_webhooks_parked")

FENCED_REFUSALS: Final = _counter("relayq_fenced_refusals_total")
LEASE_RENEWALS: Final = _counter("relayq_lease_renewals_total")
RUNS: Final = _counter("relayq_runs_total")

QUEUE_JOBS: Final = _gauge("relayq_queue_jobs")
OLDEST_PENDING_AGE_SECONDS: Final = _gauge("relayq_oldest_pending_age_seconds")
QUEUE_PAUSED: Final = _gauge("relayq_queue_paused")
OUTBOX_AGE_SECONDS: Final = _gauge("relayq_outbox_age_seconds")
DEATH_NOTICES: Final = _counter("relayq_death_notices_total")
RECONCILED: Final = _counter("relayq_reconciled_total")
REVOKED: Final = _counter("relayq_revoked_total")
EXPIRED: Final = _counter("relayq_expired_total")
GATE_REFUSALS: Final = _counter("relayq_gate_refusals_total")
PROMOTED: Final = _counter("relayq_promoted_total")
OBJECTS_SWEPT: Final = _counter("relayq_objects_swept_total")
REAP_HELD: Final = _gauge("relayq_reap_held")
REDIS_USED_MEMORY: Final = _gauge("relayq_redis_used_memory_bytes")
REDIS_MAXMEMORY: Final = _gauge("relayq_redis_maxmemory_bytes")
PASS_LAST_SUCCESS: Final = _gauge("relayq_pass_last_success_timestamp_seconds")
PASS_FAILURES: Final = _counter("relayq_pass_failures_total")
PASS_SECONDS: Final = _histogram("relayq_pass_seconds")

TASK_AGE_SECONDS: Final = _gauge("relayq_task_age_seconds")
BUILD_INFO: Final = _gauge("relayq_build_info")

if _by_name:
    raise TypeError(f"named and never made: {', '.join(_by_name)}")
