"""The one module that knows aioboto3 (and its parts): calls with retries, faults in our words, bodies.

Importing it costs some 400 ms, so ``s3.py`` does that in a thread while its process waits for work.

Retries are ours and botocore's are off. One place then decides about every fault: each attempt is signed anew and sends
the same bytes, expired credentials are read again, and the caller learns how often a call was made.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import aioboto3
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from aiohttp import ClientError as TransportError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    FlexibleChecksumError,
    HTTPClientError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
    SSLError,
)
from botocore.exceptions import IncompleteReadError as BodyTooShort
from botocore.handlers import add_expect_header

from queuecore.clock import monotonic, sleep
from queuecore.errors import BlobNotFound
from queuecore.retry import Backoff
from queuecore.storage.s3_answers import MISSING, Remedy, S3Fault, UploadGone, advice, remedy
from queuecore.storage.s3_target import Patience, S3Target

_CONNECT_SECONDS: Final = 5
_SILENCE_SECONDS: Final = 60  # between two bytes; completing a large upload may be silent for long
_CONNECTIONS: Final = 256  # a stalled download holds one; a full pool would stall the others behind it
_STREAM_BYTES: Final = 1 << 20  # aiohttp sends larger bodies from a stream, to let other tasks run in between
_READ_BYTES: Final = 1 << 20
_BACKOFF: Final = Backoff(first_seconds=0.1, most_seconds=3)
_RENEWALS: Final = 2
# botocore itself reads AWS_DEFAULT_REGION only; EKS and the other SDKs set AWS_REGION
_REGION: Final = ("region", ["AWS_REGION", "AWS_DEFAULT_REGION"], None, None)


class _Part(io.BytesIO):
    """A stream over bytes that stay shared: every attempt makes one, and none of them copies the part."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._content = content

    def getbuffer(self) -> memoryview:
        """The bytes, read-only. aiohttp asks for their number this way, and a BytesIO would copy them to answer."""
        return memoryview(self._content)


class S3Answer(dict[str, Any]):
    """An answer's fields. One that S3 always gives and this server does not is a fault of the server."""

    def __init__(self, key: str, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._key = key

    def __missing__(self, field: str) -> Any:
        text = f"the answer has no {field}; is there an S3 server at S3_ENDPOINT_URL?"
        raise S3Fault(self._key, "", text, Remedy.NONE)


class S3Body:
    """An object's bytes as they arrive. ``size`` is what the server announced for this answer."""

    def __init__(self, key: str, answer: S3Answer) -> None:
        self._key = key
        self._stream = answer["Body"]
        if "ContentLength" not in answer:
            self.close()
        self.size: int = answer["ContentLength"]

    async def read(self) -> bytes:
        """Some bytes; empty at the end.

        Raises:
            S3Fault: the connection broke, or ended before ``size`` bytes.
        """
        try:
            return await self._stream.read(_READ_BYTES)
        except (BotoCoreError, TransportError) as error:
            raise _transport_fault(self._key, error) from error

    def close(self) -> None:
        """Give the connection back, or drop it when unread bytes are on it."""
        self._stream.close()


class S3Client:
    """A connection pool to one bucket. ``S3Client.open`` makes it."""

    def __init__(self, target: S3Target, session: AioSession, client: Any) -> None:
        self._bucket = target.bucket
        self._session = session
        self._client = client

    @classmethod
    async def open(cls, target: S3Target) -> S3Client:
        """Read the credentials and build the client; nothing is sent to the S3 server yet.

        Raises:
            S3Fault: the credentials or the region cannot be read.
        """
        config = AioConfig(
            retries={"mode": "standard", "total_max_attempts": 1},
            request_checksum_calculation=target.checksums,
            response_checksum_validation=target.checksums,
            s3={"addressing_style": target.addressing_style},
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_SILENCE_SECONDS,
            max_pool_connections=_CONNECTIONS,
        )
        try:
            session = AioSession(session_vars={"region": _REGION})
            context = aioboto3.Session(botocore_session=session).client(
                "s3", endpoint_url=target.endpoint_url or None, config=config
            )
            client: Any = await context.__aenter__()
        except (BotoCoreError, ValueError) as error:  # ValueError: not an endpoint
            raise S3Fault("", "", f"the S3 client cannot start: {error}", Remedy.NONE) from error
        # "Expect: 100-continue" costs a round trip a part, some proxies never answer it, and aiohttp 3.14 reports a
        # connection that broke meanwhile as an unhandled error of a task. A refusal is heard without it.
        client.meta.events.unregister("before-call.s3", add_expect_header)
        return cls(target, session, client)

    async def aclose(self) -> None:
        """Close the pool."""
        await self._client.__aexit__(None, None, None)

    async def call(self, operation: str, key: str, patience: Patience, **parameters: Any) -> S3Answer:
        """One S3 operation by its snake-case name, retried as its faults allow; ``Body`` is bytes.

        Raises:
            BlobNotFound: the bucket has no such object.
            S3Fault: what to mend, after the last attempt.
        """
        started = monotonic()
        failures = renewals = 0
        while True:
            try:
                return await self._send(operation, key, parameters)
            except S3Fault as fault:
                failures += 1
                fault.attempts = failures
                if fault.remedy is Remedy.RENEW and renewals < _RENEWALS:
                    renewals += 1
                    await self._renew_credentials()
                elif fault.remedy is not Remedy.RETRY or (
                    failures >= patience.attempts and monotonic() - started >= patience.seconds
                ):
                    raise
            await sleep(_BACKOFF.pause_seconds(failures))

    async def get(self, key: str, patience: Patience, **parameters: Any) -> tuple[S3Answer, S3Body]:
        """``get_object``: the answer's head, and its body, which the caller closes.

        Raises:
            BlobNotFound, S3Fault
        """
        answer = await self.call("get_object", key, patience, **parameters)
        return answer, S3Body(key, answer)

    async def _send(self, operation: str, key: str, parameters: dict[str, Any]) -> S3Answer:
        body = parameters.get("Body")
        if body is not None and len(body) > _STREAM_BYTES:
            parameters = {**parameters, "Body": _Part(body)}
        try:
            return S3Answer(key, await getattr(self._client, operation)(Bucket=self._bucket, **parameters))
        except ClientError as error:
            raise self._answer_fault(key, error) from error
        except (BotoCoreError, TransportError) as error:
            raise _transport_fault(key, error) from error

    def _answer_fault(self, key: str, error: ClientError) -> BlobNotFound | S3Fault:
        answer: Any = error.response
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(answer.get("Error", {}).get("Code", "")) or str(status)
        text = str(answer.get("Error", {}).get("Message", ""))
        if code in MISSING:
            return BlobNotFound(key)
        kind = UploadGone if code == "NoSuchUpload" else S3Fault
        return kind(key, code, advice(code, status, self._bucket, text), remedy(code, status))

    async def _renew_credentials(self) -> None:
        """Read static credentials anew (a rotated file, say); those with an expiry date renew themselves."""
        with suppress(BotoCoreError):  # they cannot be read: the call that follows says so
            held = await self._session.get_credentials()
            fresh = await AioSession().get_credentials()
            if held is not None and fresh is not None:
                frozen = await fresh.get_frozen_credentials()
                held.access_key, held.secret_key, held.token = frozen.access_key, frozen.secret_key, frozen.token


def _transport_fault(key: str, error: BotoCoreError | TransportError) -> S3Fault:
    """What went wrong where no answer could be read."""
    cure = Remedy.RETRY
    match error:
        case NoCredentialsError() | PartialCredentialsError():
            text = "no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the host a role"
            cure = Remedy.NONE
        case CredentialRetrievalError() | MetadataRetrievalError():
            text = f"the AWS credentials cannot be read: {error}"
        case SSLError():
            text = f"TLS to the S3 server failed; check AWS_CA_BUNDLE: {error}"
        case EndpointConnectionError():
            text = f"no connection to the S3 server; check S3_ENDPOINT_URL: {error}"
        case FlexibleChecksumError():
            text = f"the object was damaged on its way: {error}"
        case HTTPClientError() | ResponseStreamingError() | BodyTooShort() | TransportError():
            text = f"the connection to the S3 server broke: {error}"
        case _:
            text = f"the S3 client refuses the call: {error}"
            cure = Remedy.NONE
    return S3Fault(key, "", text, cure)
