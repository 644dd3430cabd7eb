"""``GET|HEAD /jobs/{service_type}/{id}/result``: the bytes as a stream, whole or one range."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway import media
from gateway.documents import matches
from gateway.edge import edge_of, place_asked
from gateway.filenames import attachment
from gateway.problems import Refusal
from queuecore.blobs import BlobStore
from queuecore.errors import BlobError, JobExpired, OutcomeUnknown
from queuecore.job import JobRecord, Status, input_key
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})\Z")


class Range(NamedTuple):
    """The bytes from ``start`` to before ``end``."""

    start: int
    end: int


async def result(request: Request) -> Response:
    """The result; reading never deletes it."""
    edge = edge_of(request)
    tenant = (await edge.caller(request, "read")).tenant
    record = await edge.find(tenant, place_asked(request), request.path_params["id"])
    if not record.terminal:
        raise Refusal(
            409, "not_finished", f"the job is {record.status}; its result comes with the verdict",
            headers={"retry-after": "1"}, members={"job_status": record.status},
        )  # fmt: skip
    if record.status != Status.COMPLETED or not record.result_key:
        raise Refusal(404, "no_result", f"the job is {record.status} and has no result")
    size = record.result_size if record.result_size is not None else await edge.store.size(record.result_key)
    headers = _headers(record)
    if "etag" in headers and matches(request.headers.get("if-none-match"), headers["etag"]):
        return Response(status_code=304, headers=headers)
    wanted = _wanted(request, size, headers.get("etag", ""))
    start, end = wanted or (0, size)
    headers["content-length"] = str(end - start)
    if wanted:
        headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
    status = 206 if wanted else 200
    if request.method == "HEAD" or start == end:
        return Response(status_code=status, headers=headers)
    return await StoredResponse.open(edge.store, record.result_key, Range(start, end), status, headers)


async def delete(request: Request) -> Response:
    """``DELETE …/result``: the finished job, its result and its input are gone; 410 says so from here on."""
    edge = edge_of(request)
    tenant = (await edge.caller(request, "cancel")).tenant
    record = await edge.find(tenant, place_asked(request), request.path_params["id"])
    broker = edge.broker_of(record)
    try:
        await broker.erase(record.id)
    except OutcomeUnknown:
        with suppress(JobExpired):  # it had run
            await broker.erase(record.id)
    _ = await broker.drop(record.id)
    stages = [past.result_key for past in record.history]
    for key in dict.fromkeys([record.result_key, record.input_key, *stages, input_key(record.id)]):
        if key:
            try:
                await edge.store.delete(key)
            except BlobError as error:
                _log.warning("the sweeper removes %s: %s", key, error, extra={"event": Event.REQUEST_REFUSED})
    _log.info("job deleted", extra={"event": Event.JOB_DROPPED, "job_id": record.id, "model": record.model})
    return Response(status_code=204)


class StoredResponse(StreamingResponse):
    """A part of an object. Its first bytes are read before the head is sent, so that a missing, unreadable or damaged
    object is still answered as what it is; when reading fails later, the connection breaks short of Content-Length.
    """

    def __init__(
        self, opened: AsyncExitStack, chunks: AsyncIterator[bytes], status: int, headers: dict[str, str]
    ) -> None:
        super().__init__(chunks, status, headers)
        self._opened = opened

    @classmethod
    async def open(
        cls, store: BlobStore, key: str, wanted: Range, status: int, headers: dict[str, str]
    ) -> StoredResponse:
        """Raises what ``BlobStore.get`` raises."""
        async with AsyncExitStack() as stack:
            chunks = await stack.enter_async_context(
                store.get(key, offset=wanted.start, length=wanted.end - wanted.start)
            )
            first = await anext(chunks, b"")
            return cls(stack.pop_all(), _with_first(first, chunks), status, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; the object is closed however that ends."""
        async with self._opened:
            await super().__call__(scope, receive, send)


async def _with_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _headers(record: JobRecord) -> dict[str, str]:
    try:
        content_type = media.parse(record.result_content_type).text
    except ValueError:
        content_type = media.OCTETS  # what an inference server says is as little to be trusted as what a client says
    stem = record.input_filename.rpartition(".")[0] or record.input_filename or record.id
    headers = {
        "content-type": content_type,
        "content-disposition": attachment(f"{stem}{media.extension(content_type.partition(';')[0].strip().lower())}"),
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
        # What a model wrote must not run in the origin of this API.
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; sandbox",
    }
    if record.result_sha256:
        headers["etag"] = f'"{record.result_sha256}"'
    return headers


def _wanted(request: Request, size: int, etag: str) -> Range | None:
    """The one range asked for; None sends everything, which RFC 9110 §14.2 allows for whatever we do not understand.

    Raises:
        Refusal: 416, the range lies outside.
    """
    match = _RANGE.match(request.headers.get("range", "").replace(" ", ""))
    if match is None or match[0] == "bytes=-" or request.method not in {"GET", "HEAD"}:
        return None
    condition = request.headers.get("if-range")
    if condition is not None and condition != etag:
        return None
    if not match[1]:
        start, end = max(0, size - int(match[2])), size
    else:
        start = int(match[1])
        end = min(size, int(match[2]) + 1) if match[2] else size
        if match[2] and int(match[2]) < start:
            return None
    if start >= end:
        raise Refusal(
            416, "range_not_satisfiable", f"the result has {size} bytes", headers={"content-range": f"bytes */{size}"}
        )
    return Range(start, end)
