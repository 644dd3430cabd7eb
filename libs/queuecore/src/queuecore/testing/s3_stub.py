"""A small S3 server whose answers a test plans: to see what the store does with each fault, byte for byte.

It keeps S3's rules of multipart uploads (parts of 5 MiB and more except the last, numbers from 1 to 10,000) and refuses
bodies of unknown length. It checks no signature.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from typing import Final, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

MIN_PART_BYTES: Final = 5 << 20
MAX_PARTS: Final = 10_000
_OPTIONAL_HEADERS: Final = ("x-amz-checksum-", "x-amz-trailer", "x-amz-sdk-checksum-algorithm")


class StubRequest(NamedTuple):
    """What arrived; header names in lower case, ``key`` without the bucket."""

    operation: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def has_checksum(self) -> bool:
        """Whether it carries a header that only newer S3 servers take."""
        return any(name.startswith(_OPTIONAL_HEADERS) for name in self.headers) or "aws-chunked" in self.headers.get(
            "content-encoding", ""
        )


class StubAnswer(NamedTuple):
    """An HTTP answer; ``cut_bytes`` closes the connection after that many bytes, no ``length`` at its end."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    cut_bytes: int | None = None
    length: bool = True


class PlannedFault(NamedTuple):
    """What to answer instead.

    ``answer`` None resets the connection; ``after`` first does what was asked; ``early`` answers before the body and
    closes.
    """

    answer: StubAnswer | None
    after: bool = False
    early: bool = False


class S3Stub:
    """``async with S3Stub() as stub``: one bucket, in memory, at ``stub.url``."""

    def __init__(self, bucket: str = "bucket") -> None:
        self.bucket = bucket
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}
        self.requests: list[StubRequest] = []
        self.open_connections = 0
        self.cut_bytes: int | None = None  # every body of an object ends after that many bytes
        self.refuses_checksums = False
        self.parts_a_page = 1_000
        self._plan: dict[str, list[PlannedFault]] = {}
        self._always: dict[str, PlannedFault] = {}
        self._gates: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()
        self.waiting = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    def plan(self, operation: str, *faults: PlannedFault) -> None:
        """The next calls of ``operation`` ("any": of any) fail like this, one after the other."""
        self._plan.setdefault(operation, []).extend(faults)

    def plan_always(self, operation: str, fault: PlannedFault) -> None:
        """Every call of ``operation`` ("any": of any) fails like this."""
        self._always[operation] = fault

    def plan_never(self, operation: str) -> None:
        """Take back ``plan_always``."""
        del self._always[operation]

    def hold(self, operation: str) -> Callable[[], None]:
        """Answer no call of ``operation`` until the function that this gives is called."""
        gate = self._gates[operation] = asyncio.Event()
        return gate.set

    async def held(self, calls: int) -> None:
        """Wait until so many calls are held."""
        await self._reaches(lambda: self.waiting == calls)

    async def settled(self, connections: int) -> None:
        """Wait until at most so many connections are open."""
        await self._reaches(lambda: self.open_connections <= connections)

    async def _reaches(self, state: Callable[[], bool]) -> None:
        async with asyncio.timeout(5), self._changed:
            _ = await self._changed.wait_for(state)

    def count(self, operation: str) -> int:
        """How often it was called."""
        return sum(request.operation == operation for request in self.requests)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close the port and every connection."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            _ = task.cancel()
        _ = await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._count(connections=1)
        try:
            while True:
                request = await _read_head(reader)
                fault = self._fault(request.operation)
                early = fault is not None and fault.early
                if not early:
                    request = await _read_body(reader, writer, request)
                self.requests.append(request)
                if gate := self._gates.get(request.operation):
                    await self._count(waiting=1)
                    _ = await gate.wait()
                    await self._count(waiting=-1)
                done = self._do(request) if fault is None or fault.after else None
                answer = done if fault is None else fault.answer
                if answer is None:
                    writer.transport.abort()
                    return
                await _write_answer(writer, request, answer)
                if early or answer.cut_bytes is not None or not answer.length:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
            await self._count(connections=-1)

    async def _count(self, *, connections: int = 0, waiting: int = 0) -> None:
        async with self._changed:
            self.open_connections += connections
            self.waiting += waiting
            self._changed.notify_all()

    def _fault(self, operation: str) -> PlannedFault | None:
        for name in (operation, "any"):
            if planned := self._plan.get(name):
                return planned.pop(0)
            if name in self._always:
                return self._always[name]
        return None

    def _do(self, request: StubRequest) -> StubAnswer:
        if self.refuses_checksums and request.has_checksum:
            return _error(400, "InvalidArgument", "Unsupported header 'x-amz-sdk-checksum-algorithm' received")
        actions: dict[str, Callable[[StubRequest], StubAnswer]] = {
            "PutObject": self._put,
            "GetObject": self._get,
            "HeadObject": self._get,
            "DeleteObject": self._delete,
            "CreateMultipartUpload": self._create,
            "UploadPart": self._part,
            "CompleteMultipartUpload": self._complete,
            "AbortMultipartUpload": self._abort,
            "ListMultipartUploads": self._list_uploads,
            "ListParts": self._list_parts,
            "ListObjectsV2": self._list,
        }
        return actions[request.operation](request)

    def _put(self, request: StubRequest) -> StubAnswer:
        if "content-length" not in request.headers:
            return _error(411, "MissingContentLength")
        self.objects[request.key] = request.body
        return StubAnswer(headers=(("ETag", _etag(request.body)),))

    def _get(self, request: StubRequest) -> StubAnswer:
        content = self.objects.get(request.key)
        if content is None:
            return _error(404, "NoSuchKey")
        etag = _etag(content)
        if request.headers.get("if-match", etag) != etag:
            return _error(412, "PreconditionFailed")
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if span is None:
            return StubAnswer(200, content, (("ETag", etag),), self.cut_bytes)
        start = int(span[1])
        end = min(len(content), int(span[2]) + 1 if span[2] else len(content))
        if start >= len(content):
            return _error(416, "InvalidRange")
        where = ("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        return StubAnswer(206, content[start:end], (("ETag", etag), where), self.cut_bytes)

    def _delete(self, request: StubRequest) -> StubAnswer:
        _ = self.objects.pop(request.key, None)
        return StubAnswer(204)

    def _create(self, request: StubRequest) -> StubAnswer:
        upload_id = f"upload-{len(self.requests)}"
        self.uploads[upload_id] = (request.key, {})
        return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload_id}</UploadId>")

    def _part(self, request: StubRequest) -> StubAnswer:
        upload = self.uploads.get(request.query["uploadId"])
        number = int(request.query["partNumber"])
        if upload is None:
            return _error(404, "NoSuchUpload")
        if not 1 <= number <= MAX_PARTS:
            return _error(400, "InvalidArgument", "part number")
        upload[1][number] = request.body
        return StubAnswer(headers=(("ETag", _etag(request.body)),))

    def _complete(self, request: StubRequest) -> StubAnswer:
        upload = self.uploads.get(request.query["uploadId"])
        if upload is None:
            return _error(404, "NoSuchUpload")
        key, parts = upload
        numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", request.body)]
        if not numbers:
            return _error(400, "MalformedXML")
        if numbers != sorted(parts):
            return _error(400, "InvalidPart")
        if any(len(parts[number]) < MIN_PART_BYTES for number in numbers[:-1]):
            return _error(400, "EntityTooSmall")
        self.objects[key] = b"".join(parts[number] for number in numbers)
        del self.uploads[request.query["uploadId"]]
        return _xml("CompleteMultipartUploadResult", f"<Key>{escape(key)}</Key>")

    def _abort(self, request: StubRequest) -> StubAnswer:
        if self.uploads.pop(request.query["uploadId"], None) is None:
            return _error(404, "NoSuchUpload")
        return StubAnswer(204)

    def _list_uploads(self, _: StubRequest) -> StubAnswer:
        """All of the bucket: some servers do not look at the prefix."""
        items = "".join(
            f"<Upload><Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId></Upload>"
            for upload_id, (key, _) in self.uploads.items()
        )
        return _xml("ListMultipartUploadsResult", items)

    def _list_parts(self, request: StubRequest) -> StubAnswer:
        upload = self.uploads.get(request.query["uploadId"])
        if upload is None:
            return _error(404, "NoSuchUpload")
        left = [number for number in sorted(upload[1]) if number > int(request.query.get("part-number-marker", "0"))]
        items = "".join(f"<Part><PartNumber>{number}</PartNumber></Part>" for number in left[: self.parts_a_page])
        more = str(len(left) > self.parts_a_page).lower()
        return _xml("ListPartsResult", f"{items}<IsTruncated>{more}</IsTruncated>")

    def _list(self, request: StubRequest) -> StubAnswer:
        items = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size></Contents>"
            for key in sorted(self.objects)
            if key.startswith(request.query.get("prefix", "")) and key > request.query.get("start-after", "")
        )
        return _xml("ListBucketResult", items)


def _operation(method: str, key: str, query: dict[str, str]) -> str:
    if not key:
        return "ListMultipartUploads" if "uploads" in query else "ListObjectsV2"
    if "uploadId" in query:
        return {
            "PUT": "UploadPart",
            "POST": "CompleteMultipartUpload",
            "DELETE": "AbortMultipartUpload",
            "GET": "ListParts",
        }[method]
    if "uploads" in query:
        return "CreateMultipartUpload"
    return {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}[method]


async def _read_head(reader: asyncio.StreamReader) -> StubRequest:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    url = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    key = unquote(url.path).lstrip("/").partition("/")[2]
    return StubRequest(_operation(method, key, query), key, query, headers, b"")


async def _read_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: StubRequest) -> StubRequest:
    if request.headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(request.headers.get("content-length", "0")))
    return request._replace(body=body)


async def _write_answer(writer: asyncio.StreamWriter, request: StubRequest, answer: StubAnswer) -> None:
    lines = [f"HTTP/1.1 {answer.status} x"]
    lines += [f"Content-Length: {len(answer.body)}"] if answer.length else ["Connection: close"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    if not request.operation.startswith("Head"):
        writer.write(answer.body if answer.cut_bytes is None else answer.body[: answer.cut_bytes])
    await writer.drain()


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _xml(root: str, content: str) -> StubAnswer:
    return StubAnswer(200, f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}>{content}</{root}>'.encode())


def _error(status: int, code: str, message: str = "") -> StubAnswer:
    return _xml("Error", f"<Code>{code}</Code><Message>{escape(message)}</Message>")._replace(status=status)
