"""Objects in an S3 bucket, below one prefix.

``import queuecore.storage.s3`` is cheap: the S3 client is imported in a thread by ``connect``, which every call does by
itself when nobody did it before.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from queuecore.blobs import BlobEntry, BlobStore
from queuecore.errors import BlobNotFound, BlobUnavailable
from queuecore.storage.multipart import FIRST_PART_BYTES, MultipartUpload, split
from queuecore.storage.object_key import check_key
from queuecore.storage.probe import probe
from queuecore.storage.s3_answers import Remedy, S3Fault, UploadGone
from queuecore.storage.s3_target import Patience, S3Target
from queuecore.storage.unfinished import Unfinished

if TYPE_CHECKING:
    from queuecore.storage.s3_client import S3Body, S3Client

PATIENT: Final = Patience(seconds=15, attempts=3)
_HASTY: Final = Patience(seconds=0, attempts=2)  # whoever asks whether the store works wants to hear that it does not
_RESUMES: Final = 5


class S3Connection:
    """The client of one bucket, made on first use."""

    def __init__(self, target: S3Target) -> None:
        self._target = target
        self._lock = asyncio.Lock()
        self._client: S3Client | None = None
        self._closed = False

    async def client(self) -> S3Client:
        """The client; the first caller imports and builds it, the others wait.

        Raises:
            S3Fault: the settings or credentials do not make a client.
            BlobUnavailable: ``aclose`` was called.
        """
        if self._client is None:
            async with self._lock:
                if self._closed:
                    raise BlobUnavailable("", "the store is closed")
                if self._client is None:
                    module: Any = await asyncio.to_thread(importlib.import_module, "queuecore.storage.s3_client")
                    self._client = await module.S3Client.open(self._target)
        client = self._client
        assert client is not None  # noqa: S101  made above
        return client

    async def aclose(self) -> None:
        """Close the connections; nothing can be called any more."""
        async with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class S3Store(BlobStore):
    """Objects of a bucket whose keys begin with ``prefix`` and a slash (no prefix: the whole bucket).

    Transient faults are retried within ``patience``. What a cancelled ``put`` had wholly sent may be stored.
    """

    def __init__(self, connection: S3Connection, prefix: str = "", *, patience: Patience = PATIENT) -> None:
        self._connection = connection
        self._prefix = prefix
        self._root = f"{prefix}/" if prefix else ""
        self._patience = patience
        self._unfinished: Unfinished[tuple[str, str]] = Unfinished()

    async def connect(self) -> None:
        """Import the client and read the credentials now, rather than in the first call."""
        _ = await self._connection.client()

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        """One PutObject below 8 MiB, else a multipart upload with three parts on their way."""
        _ = check_key(key)
        upload: MultipartUpload | None = None
        try:
            async with aclosing(split(chunks)) as parts:
                async for part in parts:
                    if upload is None and len(part) < FIRST_PART_BYTES:
                        answer = await self._object("put_object", key, Body=part)
                        _ = answer["ETag"]  # proves that an S3 server took it, not some page in between
                        return len(part)
                    if upload is None:
                        upload = await MultipartUpload.start(self._object, key)
                    await upload.add(part)
            assert upload is not None  # noqa: S101  `split` gives at least one part
            await upload.complete()
            size = upload.size
            upload = None
        finally:
            if upload is not None:
                await upload.abort()
        return size

    @asynccontextmanager
    async def get(
        self, key: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """The bytes; where the connection breaks, the rest of the very same object is asked for again."""
        download = _Download(await self._connection.client(), key, self._root + check_key(key), self._patience)
        try:
            if length == 0:  # a Range cannot say so
                _ = await self.size(key)
            else:
                await download.start(offset, length)
            yield download
        finally:
            download.close()

    async def size(self, key: str) -> int:
        """Length of the object."""
        try:
            answer = await self._object("head_object", check_key(key))
        except (BlobNotFound, S3Fault):
            # the answer to a HEAD has no body that says why; this call fails in words, or the object is what is missing
            _ = await self._bucket("list_objects_v2", key, Prefix=self._root + key, MaxKeys=1)
            raise
        return answer["ContentLength"]

    async def delete(self, key: str) -> None:
        """Remove the object."""
        with suppress(BlobNotFound):
            _ = await self._object("delete_object", check_key(key))

    async def scan(self, prefix: str = "", *, after: str = "") -> AsyncIterator[BlobEntry]:
        """Page by page."""
        position: dict[str, str] = {"StartAfter": self._root + after} if after else {}
        while True:
            page = await self._bucket("list_objects_v2", prefix, Prefix=self._root + prefix, **position)
            for item in page.get("Contents", ()):
                yield BlobEntry(item["Key"].removeprefix(self._root), item["Size"])
            if not page.get("IsTruncated"):
                return
            position = {"ContinuationToken": page["NextContinuationToken"]}

    async def abort_unfinished(self, *, older_than_seconds: float) -> int:
        """Abort multipart uploads below our prefix that got no new part for this long.

        The time is counted from when this store first saw them so, on this process's own clock; S3's ``Initiated``
        would call a slow client's living upload old.
        """
        still = self._unfinished.still_seconds(await self._uploads())
        dead = [upload for upload, seconds in still.items() if seconds >= older_than_seconds]
        for key, upload_id in dead:
            with suppress(UploadGone):
                _ = await self._object("abort_multipart_upload", key, UploadId=upload_id)
        return len(dead)

    async def check(self) -> None:
        """Put, get and delete a probe object, with little patience."""
        await probe(S3Store(self._connection, self._prefix, patience=_HASTY))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()

    async def _uploads(self) -> dict[tuple[str, str], object]:
        """(key, upload id) of the unfinished uploads below our prefix, with the number of parts that each has."""
        page = await self._bucket("list_multipart_uploads", "", Prefix=self._root)
        found: dict[tuple[str, str], object] = {}
        for item in page.get("Uploads", ()):
            if item["Key"].startswith(self._root):
                key = item["Key"].removeprefix(self._root)
                with suppress(UploadGone):
                    found[key, item["UploadId"]] = await self._last_part(key, item["UploadId"])
        return found

    async def _last_part(self, key: str, upload_id: str) -> int:
        number = 0
        while True:
            page = await self._object("list_parts", key, UploadId=upload_id, PartNumberMarker=number)
            number = max([number, *(part["PartNumber"] for part in page.get("Parts", ()))])
            if not page.get("IsTruncated"):
                return number

    async def _object(self, operation: str, key: str, **parameters: Any) -> dict[str, Any]:
        return await self._bucket(operation, key, Key=self._root + key, **parameters)

    async def _bucket(self, operation: str, key: str, **parameters: Any) -> dict[str, Any]:
        client = await self._connection.client()
        return await client.call(operation, key, self._patience, **parameters)


class _Download:
    """An object's bytes. Where the connection breaks, the rest is asked for again, if it is still the same object."""

    def __init__(self, client: S3Client, key: str, full_key: str, patience: Patience) -> None:
        self._client = client
        self._key = key
        self._full_key = full_key
        self._patience = patience
        self._body: S3Body | None = None
        self._etag: str | None = None
        self._position = 0
        self._end: int | None = None  # known once the first answer is there
        self._resumes = 0

    async def start(self, offset: int, length: int | None) -> None:
        """Ask for the range.

        Raises:
            BlobNotFound, S3Fault
        """
        self._position = offset
        try:
            await self._request(None if length is None else offset + length)
        except S3Fault as fault:
            if fault.answer not in {"InvalidRange", "416"}:
                raise
            # the range begins behind the last byte: there is nothing to give

    def __aiter__(self) -> _Download:
        return self

    async def __anext__(self) -> bytes:
        while self._body is not None:
            try:
                chunk = await self._body.read()
            except S3Fault as fault:
                await self._resume(fault)
                continue
            self._position += len(chunk)
            if chunk:
                return chunk
            self.close()
        raise StopAsyncIteration

    def close(self) -> None:
        """Let go of the connection."""
        if self._body is not None:
            self._body.close()
            self._body = None

    async def _resume(self, fault: S3Fault) -> None:
        self.close()
        if self._resumes == _RESUMES or self._position == self._end:
            raise fault
        self._resumes += 1
        await self._request(self._end)

    async def _request(self, end: int | None) -> None:
        parameters: dict[str, str] = {}
        if self._position or end is not None:
            parameters["Range"] = f"bytes={self._position}-{'' if end is None else end - 1}"
        if self._etag is not None:
            parameters["IfMatch"] = self._etag
        answer, self._body = await self._client.get(self._key, self._patience, Key=self._full_key, **parameters)
        self._etag = answer.get("ETag")
        given_end = self._position + self._body.size
        if _first_byte(answer) != self._position or (end is not None and given_end > end):
            self.close()
            raise S3Fault(self._key, "", "the S3 server does not give the range it was asked for", Remedy.NONE)
        self._end = given_end


def _first_byte(answer: dict[str, Any]) -> int:
    """Where an answer begins: ``bytes 5-9/10`` begins at 5; without the header it is the whole object."""
    first = str(answer.get("ContentRange", "bytes 0-")).removeprefix("bytes").strip().partition("-")[0]
    return int(first) if first.isdigit() else -1
