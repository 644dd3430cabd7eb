"""Multipart uploads: a stream of unknown length in parts, a few of them on their way while the next one is made."""

from __future__ import annotations

import asyncio
import io
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, Protocol

from queuecore.errors import BlobNotFound, BlobUnavailable
from queuecore.storage.interruption import uninterrupted
from queuecore.storage.s3_answers import UploadGone

FIRST_PART_BYTES: Final = 8 << 20  # S3 takes 5 MiB and more
MAX_PARTS: Final = 10_000
_PARTS_A_SIZE: Final = 1_000
_ON_THEIR_WAY: Final = 3
_LAST_PARTS_SECONDS: Final = 2
_ABORT_SECONDS: Final = 5  # what a failing S3 server may add to somebody's way out

_logger = logging.getLogger(__name__)


class Call(Protocol):
    """One S3 operation on the object ``key``."""

    async def __call__(self, operation: str, key: str, **parameters: Any) -> dict[str, Any]:
        """The answer.

        Raises:
            BlobNotFound, S3Fault
        """
        ...


def part_bytes(number: int) -> int:
    """Size of part ``number`` (from 1): 8 MiB, doubled after every thousand, so that 10,000 parts hold 8 TiB.

    S3's largest object has 5 TiB. Up to 8 GB all parts are equal, as some look-alikes demand.
    """
    return FIRST_PART_BYTES << (number - 1) // _PARTS_A_SIZE


async def split(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The stream in parts: at least one; only the first may be empty, and only the last is short."""
    number = 1
    buffer = io.BytesIO()
    async for chunk in chunks:
        view = memoryview(chunk)
        while len(view) >= (room := part_bytes(number) - buffer.tell()):
            _ = buffer.write(view[:room])
            view = view[room:]
            part = buffer.getvalue()  # shares the buffer's memory
            buffer = io.BytesIO()
            number += 1
            yield part
            del part
        _ = buffer.write(view)
    if number == 1 or buffer.tell():
        yield buffer.getvalue()


class MultipartUpload:
    """One upload; ``start`` begins it, and it ends by ``complete`` or ``abort``."""

    def __init__(self, call: Call, key: str, upload_id: str) -> None:
        self._call = call
        self._key = key
        self._upload_id = upload_id
        self._running: deque[asyncio.Task[dict[str, Any]]] = deque()
        self._done: list[dict[str, Any]] = []
        self._number = 0
        self.size = 0

    @classmethod
    async def start(cls, call: Call, key: str) -> MultipartUpload:
        """Open the upload. A cancellation meanwhile still aborts it: its id is waited for."""
        started: list[MultipartUpload] = []

        async def create() -> MultipartUpload:
            answer = await call("create_multipart_upload", key)
            started.append(cls(call, key, answer["UploadId"]))
            return started[0]

        try:
            return await uninterrupted(create(), grace_seconds=_ABORT_SECONDS)
        except asyncio.CancelledError:
            for upload in started:
                await upload.abort()
            raise

    async def add(self, part: bytes) -> None:
        """Send a part in the background; waits while enough of them are on their way.

        Raises:
            S3Fault: an earlier part failed.
        """
        if len(self._running) == _ON_THEIR_WAY:
            await self._finish_oldest()
        self._number += 1
        self.size += len(part)
        self._running.append(asyncio.create_task(self._send(self._number, part)))

    async def complete(self) -> None:
        """Make the object from the parts.

        Raises:
            S3Fault: it could not be made.
        """
        while self._running:
            await self._finish_oldest()
        try:
            _ = await self._upload("complete_multipart_upload", MultipartUpload={"Parts": self._done})
        except UploadGone as gone:
            # a repeat after a lost answer finds no upload, because the first one had worked
            if gone.attempts == 1 or not await self._is_stored():
                raise

    async def abort(self) -> None:
        """Stop what is on its way and drop the parts: some seconds at the most, also when the caller is cancelled.

        An abort that fails is logged and left to ``abort_unfinished``: the caller has an error of its own to report.
        """
        await uninterrupted(self._abort())

    async def _upload(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return await self._call(operation, self._key, UploadId=self._upload_id, **parameters)

    async def _finish_oldest(self) -> None:
        task = self._running[0]
        _ = await asyncio.wait([task])  # unlike `await task`, a cancellation of ours does not reach the part
        _ = self._running.popleft()
        self._done.append(task.result())

    async def _send(self, number: int, part: bytes) -> dict[str, Any]:
        answer = await self._upload("upload_part", PartNumber=number, Body=part)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    async def _is_stored(self) -> bool:
        """Whether the object is there with our size. Keys are never reused for other content, so the size decides."""
        try:
            answer = await self._call("head_object", self._key)
        except BlobNotFound:
            return False
        return answer["ContentLength"] == self.size

    async def _abort(self) -> None:
        # A part that the server has taken but not answered would outlive the abort: let those end that are about to.
        if self._running:
            _ = await asyncio.wait(self._running, timeout=_LAST_PARTS_SECONDS)
        for task in self._running:
            _ = task.cancel()
        _ = await asyncio.gather(*self._running, return_exceptions=True)
        try:
            async with asyncio.timeout(_ABORT_SECONDS):
                _ = await self._upload("abort_multipart_upload")
        except UploadGone:
            return
        except (BlobUnavailable, TimeoutError) as error:
            _logger.warning("an unfinished upload of %s is left to the sweep: %s", self._key, error)
