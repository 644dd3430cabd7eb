"""Every answer that is not a 2xx: RFC 9457 problem documents with a stable ``code``, from one table.

An exception's status is looked up along its class tree; a test asserts that every exception of queuecore has a row.
Texts of our own errors about the client's request are shown; what a server of ours said is logged and not shown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from queuecore import errors
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

CONTENT_TYPE: Final = "application/problem+json"
RETRY_SECONDS: Final = 2
FULL_RETRY_SECONDS: Final = 5


class Refusal(Exception):
    """The gateway says no. ``members`` are further members of the problem document."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = dict(members or {})


class Row(NamedTuple):
    """How one class of exceptions is answered. ``detail`` "" shows the exception's own text."""

    status: int
    detail: str = ""
    retry_seconds: int | None = None


_BUG: Final = Row(500, "The gateway made a mistake; its log says which.")
_AWAY: Final = Row(503, "The queue's server does not answer just now; nothing was done. Try again.", RETRY_SECONDS)

TABLE: Final[Mapping[type[BaseException], Row]] = {
    errors.QueueCoreError: _BUG,
    errors.ConfigurationError: _BUG,
    errors.JobError: _BUG,
    errors.JobNotFound: Row(404),
    errors.JobExpired: Row(410),
    errors.ClaimLost: Row(409),
    errors.WrongState: Row(409),
    errors.DuplicateItem: Row(409, "", None),
    errors.ResultReused: Row(409, "", 1),
    errors.QueueFull: Row(429, "", FULL_RETRY_SECONDS),
    errors.TenantQueueFull: Row(429, "", FULL_RETRY_SECONDS),
    errors.ReservationLost: Row(409, "", 1),
    errors.BrokerError: _BUG,
    errors.BrokerUnavailable: _AWAY,
    errors.OutcomeUnknown: Row(
        503,
        "The connection to the queue's server broke: whether this was done is not known. Look, then try again.",
        RETRY_SECONDS,
    ),
    errors.ScriptContractError: _BUG,
    errors.BlobError: _BUG,
    errors.BlobNotFound: Row(404, "The stored object is not there (any more)."),
    errors.BlobUnavailable: Row(503, "The object store does not answer just now. Try again.", RETRY_SECONDS),
    errors.KeyUnknown: Row(503, "The object is encrypted with a key that this gateway does not hold.", RETRY_SECONDS),
    errors.BlobCorrupt: Row(500, "The stored object is damaged and is not delivered."),
}


def row_of(error: BaseException) -> Row:
    """The table's row for the nearest class of ``error``; anything unknown is a bug of ours."""
    return next((TABLE[cls] for cls in type(error).__mro__ if cls in TABLE), _BUG)


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    members: Mapping[str, object] | None = None,
) -> Response:
    """The response for one problem."""
    return Response(
        document(status, code, detail, members), status, {"cache-control": "no-store", **(headers or {})}, CONTENT_TYPE
    )


def document(status: int, code: str, detail: str, members: Mapping[str, object] | None = None) -> bytes:
    """The problem document itself."""
    return msgspec.json.encode(
        {
            "type": f"urn:relayq:problem:{code}",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "code": code,
            # Texts may quote what a client sent; what cannot be UTF-8 is replaced.
            "detail": detail.encode("utf-8", "replace").decode(),
            **(members or {}),
        }
    )


def refusal_of(error: errors.QueueCoreError) -> Refusal:
    """One of queuecore's errors as a refusal, by the table."""
    row = row_of(error)
    headers = {} if row.retry_seconds is None else {"retry-after": str(row.retry_seconds)}
    members: dict[str, object] = {}
    if isinstance(error, errors.JobExpired):
        members = {"cause": error.tombstone.get("cause", "retention_over")}
        members |= {"job": {name: text for name, text in error.tombstone.items() if name in _SHOWN_OF_TOMBSTONE}}
    if isinstance(error, errors.WrongState):
        members = {"job_status": error.status}
    return Refusal(row.status, error.code, row.detail or str(error), headers=headers, members=members)


_SHOWN_OF_TOMBSTONE: Final = frozenset(
    {"status", "error_code", "error_message", "finished_at", "model", "service_type"}
)


async def on_refusal(_: Request, error: Exception) -> Response:
    """Handler for ``Refusal``."""
    assert isinstance(error, Refusal)  # noqa: S101  registered for this class only
    return problem(error.status, error.code, error.detail, headers=error.headers, members=error.members)


async def on_queue_error(request: Request, error: Exception) -> Response:
    """Handler for everything of ``queuecore.errors``; what we do not show is logged here, once."""
    assert isinstance(error, errors.QueueCoreError)  # noqa: S101  registered for this class only
    refusal = refusal_of(error)
    log_refused(error, refusal.status)
    return await on_refusal(request, refusal)


def log_refused(error: errors.QueueCoreError, status: int) -> None:
    """Write down what the client is not told: the text of a fault of ours."""
    if status >= 500:  # noqa: PLR2004  the class of our own faults
        level = logging.ERROR if status == 500 else logging.WARNING  # noqa: PLR2004
        _log.log(level, "%s", error, extra={"event": Event.REQUEST_REFUSED, "error_code": error.code})


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Handler for what Starlette's router raises: 404 and 405."""
    assert isinstance(error, HTTPException)  # noqa: S101  registered for this class only
    code = {404: "route_not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    detail = {404: f"there is no {request.url.path}", 405: f"{request.url.path} has no method {request.method}"}.get(
        error.status_code, error.detail
    )
    return problem(error.status_code, code, detail, headers=error.headers)


async def on_bug(_: Request, error: Exception) -> Response:
    """Handler for what nobody expected; the server logs the traceback."""
    row = row_of(error)
    return problem(row.status, errors.QueueCoreError.code, row.detail)


HANDLERS: Final = {
    Refusal: on_refusal,
    errors.QueueCoreError: on_queue_error,
    HTTPException: on_http_exception,
    Exception: on_bug,
}
