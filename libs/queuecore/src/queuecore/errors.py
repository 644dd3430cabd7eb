"""Every exception of queuecore.

    QueueCoreError                    code: stable snake_case; retryable
    ├── ConfigurationError            found at start: the process must not run
    ├── JobError(job_id)
    │   ├── JobNotFound               no such record
    │   ├── JobExpired                was here, retention is over; carries the tombstone
    │   ├── ClaimLost                 the claim is no longer current: stop, write nothing
    │   ├── DuplicateItem             names the first job of this item; nothing was submitted
    │   └── WrongState(status)        the verb does not apply now
    ├── QueueFull(model, limit)
    │   └── TenantQueueFull         the tenant's share of it is used up
    ├── ReservationLost               another request has the idempotency key meanwhile: nothing was submitted
    ├── BrokerError
    │   ├── BrokerUnavailable         did not run: retry freely
    │   ├── OutcomeUnknown            may have run: repeat only because every script is idempotent
    │   └── ScriptContractError       a reply that the script's header does not list: a bug
    └── BlobError
        ├── BlobNotFound
        ├── BlobUnavailable           the store did not answer, or said so: retry
        │   └── KeyUnknown(key_id)    encrypted with a key that is not in the ring: retry once the operator added it
        └── BlobCorrupt               integrity check failed: never retry, never deliver

``code`` is the same word in the HTTP problem, in logs and in metric labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class QueueCoreError(Exception):
    """Base of everything queuecore raises on purpose."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False


class ConfigurationError(QueueCoreError):
    """A setting or a file is wrong; the text names it and the rule."""

    code = "configuration_error"


class JobError(QueueCoreError):
    """Base of errors about one job."""

    def __init__(self, job_id: str, message: str) -> None:
        super().__init__(f"job {job_id}: {message}")
        self.job_id = job_id


class JobNotFound(JobError):
    """There is no record of this job."""

    code = "job_not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id, "no such job")


class JobExpired(JobError):
    """The job's retention is over; ``tombstone`` says what it was (HTTP 410)."""

    code = "job_expired"

    def __init__(self, job_id: str, tombstone: Mapping[str, str]) -> None:
        super().__init__(job_id, f"was {tombstone.get('status', 'known')}; its retention is over")
        self.tombstone = dict(tombstone)


class ClaimLost(JobError):
    """Fence and claim_id are not the current ones (any more): write nothing."""

    code = "claim_lost"

    def __init__(self, job_id: str, reason: str = "the claim is no longer current") -> None:
        super().__init__(job_id, reason)


class DuplicateItem(JobError):
    """This item was submitted before, within its window; ``job_id`` is the first job. Nothing was submitted."""

    code = "duplicate_item"

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id, "took this dedup_key within its window; force takes it again")


class ResultReused(JobError):
    """``job_id`` has the result of this very request, or will have it; nothing was submitted (ADR 0009)."""

    code = "result_reused"

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id, "answers this request; a fresh submission runs it again")


class WrongState(JobError):
    """The verb does not apply to a job of this status."""

    code = "wrong_state"

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(job_id, f"is {status}")
        self.status = status


class QueueFull(QueueCoreError):
    """The queue holds ``max_pending`` jobs already; nothing was submitted."""

    code = "queue_full"
    retryable = True

    def __init__(self, model: str, limit: int) -> None:
        super().__init__(f"the queue of {model} holds its maximum of {limit} waiting jobs")
        self.model = model
        self.limit = limit


class TenantQueueFull(QueueFull):
    """So many jobs of this tenant are pending in the queue already; nothing was submitted, and others still can."""

    code = "tenant_queue_full"

    def __init__(self, model: str, limit: int) -> None:
        super().__init__(model, limit)
        self.args = (f"the queue of {model} holds {limit} waiting jobs of this tenant, its maximum",)


class ReservationLost(QueueCoreError):
    """The idempotency key is somebody else's meanwhile; nothing was submitted, and a repeat finds out whose."""

    code = "idempotency_in_flight"
    retryable = True


class BrokerError(QueueCoreError):
    """Base of errors of the queue's server."""


class BrokerUnavailable(BrokerError):
    """The call did not run."""

    code = "queue_unavailable"
    retryable = True


class OutcomeUnknown(BrokerError):
    """The link broke: the call ran whole or not at all."""

    code = "outcome_unknown"
    retryable = True


class ScriptContractError(BrokerError):
    """A script answered what its header does not list: a bug."""

    code = "script_contract"


class BlobError(QueueCoreError):
    """Base of errors of the blob store."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


class BlobNotFound(BlobError):
    """There is no such object."""

    code = "blob_not_found"

    def __init__(self, key: str) -> None:
        super().__init__(key, "no such object")


class BlobUnavailable(BlobError):
    """The store did not answer or refused for now."""

    code = "storage_unavailable"
    retryable = True


class KeyUnknown(BlobUnavailable):
    """The object's encryption key is not in this process's ring; the bytes are intact and readable once it is."""

    def __init__(self, key: str, key_id: str) -> None:
        super().__init__(key, f"is encrypted with the key {key_id!r}, which ENCRYPTION_KEYS(_FILE) does not hold")
        self.key_id = key_id


class BlobCorrupt(BlobError):
    """What is stored is not what was written: cut, reordered, foreign or damaged."""

    code = "blob_corrupt"
