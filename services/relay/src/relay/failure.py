"""What ends a run without a result, and the verdict that is made of it."""

from __future__ import annotations

from queuecore.broker import Breaker, Failure
from queuecore.config import Retries
from queuecore.errors import BlobCorrupt, BlobError, BlobNotFound
from queuecore.job import ErrorCode, JobRecord
from queuecore.retry import Backoff, RetryPolicy


class RunFailed(Exception):
    """The run ended without a result.

    ``retryable``: another run may succeed, so the model's ``retries`` apply. ``infrastructure``: the job is not to
    blame, so the breaker counts it.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        http_status: int | None = None,
        retryable: bool = False,
        infrastructure: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.http_status = http_status
        self.retryable = retryable
        self.infrastructure = infrastructure
        self.retry_after_seconds = retry_after_seconds


def store_failed(error: BlobError) -> RunFailed:
    """The failure that a fault of the store means. Its key is left out: it is the job's id and the object's name."""
    if isinstance(error, BlobNotFound):
        return RunFailed("input_missing", "the stored input is gone")
    if isinstance(error, BlobCorrupt):
        return RunFailed("input_corrupt", "the stored input is not what was submitted")
    return RunFailed("storage_unavailable", "the store did not answer in time", infrastructure=True)


def verdict(error: RunFailed, record: JobRecord, retries: Retries, breaker: Breaker, *, run_seconds: float) -> Failure:
    """What to tell the broker: a final failure, or one to be retried when the model's ``retries`` allow it.

    ``run_seconds`` since the claim, on our clock: with the claim's time on the server's it gives the time left until
    the job's deadline without comparing two clocks.
    """
    retry_in_ms = None
    if error.retryable:
        policy = RetryPolicy(retries.max_attempts, Backoff(retries.backoff_seconds, retries.max_backoff_seconds))
        left_seconds = None
        if record.deadline is not None and record.started_at is not None:
            left_seconds = (record.deadline - record.started_at) / 1000 - run_seconds
        delay = policy.delay_seconds(
            record.failures + 1, retry_after_seconds=error.retry_after_seconds, left_seconds=left_seconds
        )
        retry_in_ms = None if delay is None else round(delay * 1000)
    return Failure(
        error.code,
        str(error),
        http_status=error.http_status,
        retry_in_ms=retry_in_ms,
        infrastructure=error.infrastructure,
        breaker=breaker,
    )
