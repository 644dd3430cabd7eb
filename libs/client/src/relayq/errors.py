"""What a call of the client can end in, besides its answer.

RelayqError
├── NotReachable            nothing was sent: safe to repeat
├── OutcomeUnknown          a submission was sent and no answer came: the job may exist
├── SourceChanged           the file grew or shrank while it was sent: nothing was submitted
├── UnexpectedAnswer        the other end does not speak relayq's interface, or the bytes are not what it announced
├── WaitTimeout(job)        no verdict within the caller's own limit; the job goes on
└── Refused(status, code, detail, retry_after_seconds)      the server said no (RFC 9457 problem)
    ├── InvalidRequest      400, 415, 422
    ├── Unauthorized        401, 403
    ├── NotFound            404
    ├── Conflict            409
    ├── Gone                410: the job was here, its retention is over
    ├── TooLarge            413
    ├── Throttled           429: a limit, or the queue is full
    └── Unavailable         503, 502, 504: Redis or the store is away
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relayq.job import Job


class RelayqError(Exception):
    """Base of everything the client raises on purpose."""


class NotReachable(RelayqError):
    """No connection: nothing was sent."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"cannot reach {url}: {reason}")
        self.url = url


class OutcomeUnknown(RelayqError):
    """The connection broke after the request had begun; it may have been carried out.

    A submission with this ``idempotency_key`` can be sent again: there is one job however often it is.
    """

    idempotency_key: str = ""


class SourceChanged(RelayqError):
    """The file is not as long as it was when the request began; the server dropped the unfinished upload."""


class UnexpectedAnswer(RelayqError):
    """The answer is not one that the interface lists."""


class WaitTimeout(RelayqError):
    """The job has no verdict yet; it goes on."""

    def __init__(self, job: Job, seconds: float) -> None:
        super().__init__(f"job {job.job_id} is still {job.status} after {seconds:g} s")
        self.job = job


class Refused(RelayqError):
    """The server answered with a problem document."""

    def __init__(self, status: int, code: str, detail: str, problem: Mapping[str, Any], retry_after: float | None):
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.problem = dict(problem)
        self.retry_after_seconds = retry_after


class InvalidRequest(Refused):
    """The request itself is wrong (400, 415, 422)."""


class Unauthorized(Refused):
    """No key, or not this key (401, 403)."""


class NotFound(Refused):
    """No such job, result, model or route, or another tenant's (404)."""


class Conflict(Refused):
    """The job's state does not allow it (409)."""


class Gone(Refused):
    """The job's retention is over (410)."""


class TooLarge(Refused):
    """The file is over the limit (413)."""


class Throttled(Refused):
    """A limit was reached or the queue is full (429)."""


class Unavailable(Refused):
    """The server cannot work just now (502, 503, 504)."""


REFUSALS: Mapping[int, type[Refused]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    415: InvalidRequest,
    422: InvalidRequest,
    429: Throttled,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
