"""What an S3 server's error means for us: whether to ask again, and what the operator is told. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from queuecore.errors import BlobUnavailable


class Remedy(StrEnum):
    """What may help after a failed call."""

    RETRY = "retry"  # it passes: ask again with backoff, while the patience lasts
    RENEW = "renew"  # ask again with a fresh signature and fresh credentials, a few times
    NONE = "none"  # the same answer would come back


class S3Fault(BlobUnavailable):
    """The server, or the way to it, failed; ``answer`` is S3's error code ("" without an answer)."""

    def __init__(self, key: str, answer: str, message: str, remedy: Remedy) -> None:
        super().__init__(key, message)
        self.answer = answer
        self.remedy = remedy
        self.attempts = 1


class UploadGone(S3Fault):
    """There is no such multipart upload: aborted, or completed before."""


class _Meaning(NamedTuple):
    remedy: Remedy
    mend: str


# A HEAD's answer has no body: its status stands for the code.
MISSING: Final = frozenset({"NoSuchKey", "404", "NotFound"})

_TOO_MANY_REQUESTS: Final = 429
_SERVER_ERROR: Final = 500
_STATUS_CODES: Final = {501: "NotImplemented", 507: "InsufficientStorage"}
_TROUBLE: Final = _Meaning(Remedy.RETRY, "the S3 server is overloaded or failing")
_REFUSAL: Final = _Meaning(Remedy.NONE, "the S3 server refuses the request")

_ROWS: Final = (
    (
        "InternalError InternalFailure ServiceUnavailable ServerBusy OperationAborted ConditionalRequestConflict",
        _TROUBLE,
    ),
    ("SlowDown SlowDownRead SlowDownWrite RequestTimeout RequestTimeoutException TooManyRequests", _TROUBLE),
    ("Throttling ThrottlingException RequestThrottled RequestLimitExceeded BandwidthLimitExceeded", _TROUBLE),
    (
        "BadDigest XAmzContentSHA256Mismatch IncompleteBody",
        _Meaning(Remedy.RETRY, "what we send arrives damaged; check the network and proxies"),
    ),
    (
        "RequestTimeTooSkewed",
        _Meaning(Remedy.RENEW, "this host's clock and the S3 server's disagree; set the clock (NTP)"),
    ),
    (
        "ExpiredToken ExpiredTokenException TokenRefreshRequired RequestExpired",
        _Meaning(
            Remedy.RENEW,
            "the AWS credentials have expired; renew AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
        ),
    ),
    (
        "InvalidAccessKeyId SignatureDoesNotMatch InvalidToken InvalidClientTokenId UnrecognizedClientException",
        _Meaning(
            Remedy.NONE,
            "the AWS credentials are wrong; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
        ),
    ),
    (
        "AccessDenied AllAccessDisabled AccountProblem Forbidden 403",
        _Meaning(
            Remedy.NONE,
            "access denied; the credentials need s3:PutObject, s3:GetObject, s3:DeleteObject, s3:ListBucket, "
            "s3:AbortMultipartUpload, s3:ListMultipartUploadParts and s3:ListBucketMultipartUploads on {bucket}",
        ),
    ),
    (
        "NoSuchBucket InvalidBucketName",
        _Meaning(Remedy.NONE, "there is no bucket {bucket}; check BLOBS_URL and S3_ENDPOINT_URL, or create it"),
    ),
    (
        "PermanentRedirect TemporaryRedirect IllegalLocationConstraintException AuthorizationHeaderMalformed 301 307",
        _Meaning(Remedy.NONE, "the bucket {bucket} is elsewhere; check AWS_REGION and S3_ENDPOINT_URL"),
    ),
    (
        "NotImplemented InvalidArgument InvalidRequest InvalidDigest",
        _Meaning(
            Remedy.NONE,
            "this server does not take a header of ours; leave S3_CHECKSUMS at when_required, and try "
            "S3_ADDRESSING_STYLE=path",
        ),
    ),
    (
        "MissingContentLength",
        _Meaning(
            Remedy.NONE, "something between us and the server removes Content-Length; check S3_ENDPOINT_URL and proxies"
        ),
    ),
    (
        "QuotaExceeded XMinioStorageFull XMinioAdminBucketQuotaExceeded InsufficientStorage",
        _Meaning(Remedy.NONE, "the S3 server is full or the quota is used up"),
    ),
    (
        "EntityTooSmall EntityTooLarge InvalidPart InvalidPartOrder MalformedXML",
        _Meaning(
            Remedy.NONE,
            "this server's rules for multipart uploads are not S3's (parts of 5 MiB and more, at most 10,000)",
        ),
    ),
    (
        "InvalidObjectState",
        _Meaning(
            Remedy.NONE, "the object was archived; no lifecycle rule may move the objects of {bucket} to an archive"
        ),
    ),
    (
        "NoSuchUpload",
        _Meaning(
            Remedy.NONE, "somebody aborted the multipart upload; does a lifecycle rule give uploads too little time?"
        ),
    ),
    ("PreconditionFailed 412", _Meaning(Remedy.NONE, "the object was replaced while it was read")),
)
_MEANINGS: Final = {code: meaning for codes, meaning in _ROWS for code in codes.split()}


def remedy(code: str, status: int) -> Remedy:
    """Whether the same call may succeed when it is made again."""
    return _meaning(code, status).remedy


def advice(code: str, status: int, bucket: str, text: str) -> str:
    """One line that says what happened and what to mend; ``text`` is the server's own message."""
    mend = _meaning(code, status).mend.replace("{bucket}", bucket)
    return f"S3 answered {status} {_printable(code)} ({_printable(text)}): {mend}"


def _meaning(code: str, status: int) -> _Meaning:
    known = _MEANINGS.get(code) or _MEANINGS.get(_STATUS_CODES.get(status, ""))
    if known is not None:
        return known
    return _TROUBLE if status >= _SERVER_ERROR or status == _TOO_MANY_REQUESTS else _REFUSAL


def _printable(text: str) -> str:
    """The server's words, bounded and without control characters."""
    return "".join(character if character.isprintable() else " " for character in text[:200]).strip() or "no message"
