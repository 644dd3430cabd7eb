"""The bytes of a submission, from the socket to the store as one stream; nothing is kept on disk or whole in memory.

An ``Intake`` reads one request body. ``Intake.source()`` is what ``BlobStore.put`` reads from: it yields the file's
bytes while they arrive, counts and hashes them once, looks at the first ones, and ends only when the whole body was
read, the form was closed and every option was found good. Anything else raises inside the store's ``put``, which then
stores nothing. So there is never an object of a refused, cut or abandoned upload to be taken back.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, NamedTuple

from starlette.types import Receive

from gateway import media
from gateway.filenames import from_disposition, parse_disposition
from gateway.form import BOUNDARY_RULE, FIELDS_BYTES, FRAMING_BYTES, FormReader, boundary_of
from gateway.members import object_members
from gateway.problems import Refusal
from gateway.requests import Options, Submission
from queuecore.clock import monotonic
from queuecore.config import ModelConfig

JSON_FILENAME: Final = "input.json"
SLOW_SECONDS: Final = 60.0
SLOWEST_BYTES_PER_SECOND: Final = 256


class Disconnected(Exception):
    """The client went away before its body was whole: not an error of anybody, and nothing is answered."""


class Limits(NamedTuple):
    """Of the gateway; a model's own limit may be smaller."""

    upload_bytes: int
    json_bytes: int
    idle_seconds: float


class Head(NamedTuple):
    """What the request's head says about its body."""

    content_type: str | None
    content_length: int | None
    disposition: str | None
    priority_header: bool


class Accepted(NamedTuple):
    """A whole upload."""

    submission: Submission
    size: int
    sha256: str
    filename: str
    content_type: str


class Intake:
    """One request body. After ``source()`` has ended, ``accepted`` is set."""

    def __init__(self, receive: Receive, head: Head, options: Options, limits: Limits) -> None:
        """Check what the head alone decides.

        Raises:
            Refusal: 413 before a byte is read, or a Content-Type that cannot be read.
        """
        self.accepted: Accepted | None = None
        self._receive = receive
        self._head = head
        self._options = options
        self._limits = limits
        self._digest = hashlib.sha256()
        self._size = 0
        self._filename = ""
        self._declared: media.MediaType | None = None
        self._type: tuple[ModelConfig, str] | None = None  # as found for this model
        try:
            declared = media.parse(head.content_type) if head.content_type else None
        except ValueError as error:
            if (head.content_type or "").lower().startswith("multipart/form-data"):
                raise Refusal(400, "malformed_form", f"Content-Type: {BOUNDARY_RULE}") from error
            raise Refusal(415, "unsupported_media_type", f"Content-Type: {error}") from error
        self._source: Callable[[], AsyncIterator[bytes]]
        if declared and declared.essence == "multipart/form-data":
            self._boundary = boundary_of(declared)
            self._source = self._form
            self._refuse_length(self._limit(), FIELDS_BYTES + FRAMING_BYTES)
        elif declared and declared.essence == "application/json":
            self._source = self._json
            self._refuse_length(self._json_limit())
        elif declared and declared.essence.startswith("multipart/"):
            raise Refusal(
                415, "unsupported_media_type", "of the multipart types only multipart/form-data is understood"
            )
        elif declared and declared.essence == "application/x-www-form-urlencoded":
            # What curl -d and HTML forms send when nobody chose a type: as a raw file it would be a surprise.
            raise Refusal(
                415, "unsupported_media_type", "send a file as multipart/form-data, or with its own type as the body"
            )
        else:
            self._source = self._raw
            self._declared = declared
            self._filename = _raw_filename(head.disposition)
            self._refuse_length(self._limit())

    async def source(self) -> AsyncGenerator[bytes, None]:
        """The file's bytes, for the store.

        Raises:
            Refusal, Disconnected
        """
        head = b""
        sniffed = False
        async for piece in self._source():
            self._size += len(piece)
            self._digest.update(piece)
            if sniffed:
                yield piece
                continue
            head += piece
            if len(head) >= media.HEAD_BYTES:
                sniffed = True
                self._look_early(head)
                yield head
        submission = self._options.resolve(priority_header=self._head.priority_header)
        if self._size == 0:
            raise Refusal(400, "empty_input", "file: it is empty")
        self._check_size(submission.config.max_upload_bytes)
        content_type = self._effective_type(submission.config, head)
        if not sniffed:
            yield head
        self.accepted = Accepted(submission, self._size, self._digest.hexdigest(), self._filename, content_type)

    # -- the three kinds of body --------------------------------------------------------------------------------

    async def _form(self) -> AsyncIterator[bytes]:
        reader = FormReader(self._boundary)
        known_fields = 0
        limit = 0
        async for data in self._body():
            reader.feed(data)
            for name, text in reader.fields[known_fields:]:
                self._options.add_text(name, text)
            known_fields = len(reader.fields)
            if reader.file is None:
                continue
            if not limit:
                self._filename, self._declared = reader.file
                limit = self._limit()
            for piece in reader.take():
                self._check_size(limit, len(piece))
                yield piece
        reader.close()

    async def _raw(self) -> AsyncIterator[bytes]:
        limit = self._limit()
        async for data in self._body():
            self._check_size(limit, len(data))
            yield data

    async def _json(self) -> AsyncIterator[bytes]:
        body = bytearray()
        limit = self._json_limit()
        async for data in self._body():
            body += data
            if len(body) > limit:
                raise _too_large(limit, "a JSON body may have {} bytes; send larger input as multipart/form-data")
        try:
            members = object_members(bytes(body))
        except ValueError as error:
            raise Refusal(400, "invalid_json", f"the body must be a JSON object: {error}") from error
        given = members.pop("input", None)
        if given is None:
            raise Refusal(400, "file_missing", "input: required; it is stored as the job's file")
        for name, value in members.items():
            self._options.add_json(name, value)
        self._filename = JSON_FILENAME
        self._declared = media.parse("application/json")
        yield bytes(given)

    async def _body(self) -> AsyncIterator[bytes]:
        more = True
        received = 0
        begun = monotonic()
        while more:
            try:
                async with asyncio.timeout(self._limits.idle_seconds):
                    message = await self._receive()
            except TimeoutError as error:
                raise Refusal(
                    408, "upload_timeout", f"nothing of the body came for {self._limits.idle_seconds:g} s"
                ) from error
            if message["type"] == "http.disconnect":
                raise Disconnected
            more = bool(message.get("more_body", False))
            body: bytes = message.get("body", b"")
            received += len(body)
            if monotonic() - begun > SLOW_SECONDS and received < SLOWEST_BYTES_PER_SECOND * (monotonic() - begun):
                # One byte now and then would hold a connection and an unfinished object for ever.
                raise Refusal(
                    408, "upload_timeout", f"the body comes slower than {SLOWEST_BYTES_PER_SECOND} bytes a second"
                )
            if body:
                yield body

    # -- limits and types ---------------------------------------------------------------------------------------

    def _limit(self) -> int:
        """The largest file that may still turn out to be allowed."""
        candidates = self._options.candidates()
        largest = max(model.max_upload_bytes or self._limits.upload_bytes for model in candidates)
        return min(self._limits.upload_bytes, largest)

    def _json_limit(self) -> int:
        return min(self._limits.json_bytes, self._limit())

    def _refuse_length(self, limit: int, overhead: int = 0) -> None:
        if self._head.content_length is not None and self._head.content_length > limit + overhead:
            raise _too_large(limit)

    def _check_size(self, limit: int | None, more: int = 0) -> None:
        if limit is not None and self._size + more > limit:
            raise _too_large(limit)

    def _look_early(self, head: bytes) -> None:
        """Refuse a wrong type before the rest is sent, when the model is known already."""
        candidates = self._options.candidates()
        if len(candidates) == 1:
            _ = self._effective_type(candidates[0], head)

    def _effective_type(self, model: ModelConfig, head: bytes) -> str:
        if self._type is None or self._type[0] is not model:
            try:
                found = media.effective_type(
                    self._declared, self._filename, head[: media.HEAD_BYTES], model.accepted_types
                )
            except media.Mismatch as error:
                raise Refusal(415, "unsupported_media_type", str(error)) from error
            self._type = model, found
        return self._type[1]


def _raw_filename(disposition: str | None) -> str:
    """A raw body may bring its name in a Content-Disposition of the request."""
    if not disposition:
        return ""
    try:
        return from_disposition(parse_disposition(disposition.encode("latin-1"))[1]) or ""
    except ValueError as error:
        raise Refusal(400, "invalid_request", f"Content-Disposition: {error}") from error


def _too_large(limit: int, text: str = "a file may have {} bytes") -> Refusal:
    return Refusal(413, "upload_too_large", text.format(limit), members={"limit_bytes": limit})
