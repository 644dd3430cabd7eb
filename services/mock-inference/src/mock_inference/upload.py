"""Reading a request's body once, as a stream: what came, not the bytes themselves.

Memory is bounded: a file is hashed while it is read and only its first 64 KiB are kept (for a WAV's header), text
fields and JSON have limits, and the form parser refuses more than 8 headers or 4 KiB of one header in a part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from mock_inference.wav import HEAD_BYTES, WavFacts, wav_facts

MAX_PARTS: Final = 1_000
MAX_TEXT_BYTES: Final = 4 << 20
MAX_JSON_BYTES: Final = 16 << 20
_MAX_BOUNDARY_BYTES: Final = 256


class BodyError(ValueError):
    """The body is not what its content type says, or too large; ``status`` is the answer's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Digest:
    """Counts and hashes bytes as they pass, and keeps the first ones."""

    __slots__ = ("_hash", "head", "size")

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.head = b""
        self.size = 0

    def add(self, content: bytes | memoryview) -> None:
        """Take the next bytes."""
        self._hash.update(content)
        self.size += len(content)
        if len(self.head) < HEAD_BYTES:
            self.head += bytes(content[: HEAD_BYTES - len(self.head)])

    @property
    def sha256(self) -> str:
        """Of all bytes so far, as hexadecimal text."""
        return self._hash.hexdigest()


@dataclass(slots=True)
class Part:
    """One part of a form. ``headers`` are its header lines exactly as they came, without the line ends."""

    headers: list[str] = field(default_factory=list)
    name: str = ""
    filename: str | None = None
    content_type: str | None = None
    digest: Digest = field(default_factory=Digest)
    text: bytearray = field(default_factory=bytearray)  # of a part without a filename

    @property
    def value(self) -> str:
        """A text field's value; bytes that are not UTF-8 come as surrogates."""
        return text_of(bytes(self.text))


@dataclass(slots=True)
class Upload:
    """What one request's body was."""

    content_type: str
    body: Digest = field(default_factory=Digest)
    parts: list[Part] = field(default_factory=list)
    document: object = None  # a JSON body's value

    @property
    def file(self) -> Part | None:
        """The first part with a filename; of a body that is neither form nor JSON, the body."""
        if self.media_type == "multipart/form-data":
            return next((part for part in self.parts if part.filename is not None), None)
        if self.media_type == "application/json":
            return None
        return Part(content_type=self.content_type or None, digest=self.body)

    @property
    def media_type(self) -> str:
        """The content type without its parameters, lower case."""
        return self.content_type.partition(";")[0].strip().lower()

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The form's text fields, in order."""
        return [(part.name, part.value) for part in self.parts if part.filename is None]

    @property
    def members(self) -> dict[str, Any]:
        """A JSON object's members; empty for any other body."""
        return cast("dict[str, Any]", self.document) if isinstance(self.document, dict) else {}

    @property
    def wav(self) -> WavFacts | None:
        """Facts of the file, when it is a WAV."""
        return wav_facts(self.file.digest.head, self.file.digest.size) if self.file else None


async def read_upload(upload: Upload, chunks: AsyncIterator[bytes]) -> None:
    """Read the whole body into ``upload``, which shows the progress meanwhile.

    Raises:
        BodyError: a broken or oversized form, JSON that is none.
    """
    if upload.media_type == "multipart/form-data":
        form = _Form(upload)
        async for chunk in chunks:
            upload.body.add(chunk)
            form.feed(chunk)
        form.finish()
    elif upload.media_type == "application/json":
        content = bytearray()
        async for chunk in chunks:
            upload.body.add(chunk)
            if upload.body.size > MAX_JSON_BYTES:
                raise BodyError(f"a JSON body has at most {MAX_JSON_BYTES} bytes", 413)
            content += chunk
        try:
            upload.document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise BodyError(f"the body is not JSON: {error}") from error
    else:
        async for chunk in chunks:
            upload.body.add(chunk)


def text_of(content: bytes) -> str:
    """Text that keeps every byte: what is not UTF-8 becomes lone surrogates."""
    return content.decode("utf-8", "surrogateescape")


class _Form:
    """Feeds the form parser and collects what it finds."""

    def __init__(self, upload: Upload) -> None:
        _, options = parse_options_header(upload.content_type)
        boundary = options.get(b"boundary", b"")
        if not 0 < len(boundary) <= _MAX_BOUNDARY_BYTES:
            raise BodyError(f"multipart/form-data needs a boundary of 1 to {_MAX_BOUNDARY_BYTES} bytes")
        self._upload = upload
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._part_data,
                "on_end": self._end,
            },
        )
        self._part = Part()
        self._text_bytes = 0
        self._name, self._value = bytearray(), bytearray()
        # positions in the whole body, for the spaces between a header's colon and its value
        self._before = 0
        self._name_end = self._value_start = 0
        self._complete = False

    def feed(self, chunk: bytes) -> None:
        try:
            _ = self._parser.write(chunk)
        except FormParserError as error:
            raise BodyError(f"the form is broken: {error}") from error
        self._before += len(chunk)

    def finish(self) -> None:
        # the parser does not say so itself
        if not self._complete:
            raise BodyError("the form is cut off: its closing boundary is missing")

    def _part_begin(self) -> None:
        if len(self._upload.parts) == MAX_PARTS:
            raise BodyError(f"a form has at most {MAX_PARTS} parts", 413)
        self._part = Part()
        self._upload.parts.append(self._part)

    def _header_field(self, chunk: bytes, start: int, end: int) -> None:
        self._name += chunk[start:end]
        self._name_end = self._before + end

    def _header_value(self, chunk: bytes, start: int, end: int) -> None:
        if not self._value:
            self._value_start = self._before + start
        self._value += chunk[start:end]

    def _header_end(self) -> None:
        spaces = b" " * (self._value_start - self._name_end - 1 if self._value else 0)
        self._part.headers.append(text_of(bytes(self._name) + b":" + spaces + bytes(self._value)))
        match bytes(self._name).lower():
            case b"content-disposition":
                _, options = parse_options_header(self._value.decode("latin-1"))
                self._part.name = text_of(options.get(b"name", b""))
                self._part.filename = text_of(options[b"filename"]) if b"filename" in options else None
            case b"content-type":
                self._part.content_type = text_of(bytes(self._value))
            case _:
                pass
        self._name, self._value = bytearray(), bytearray()

    def _headers_finished(self) -> None:
        if not self._part.name:
            raise BodyError("a part has no Content-Disposition with a name")

    def _part_data(self, chunk: bytes, start: int, end: int) -> None:
        with memoryview(chunk) as view, view[start:end] as content:
            self._part.digest.add(content)
            if self._part.filename is None:
                self._text_bytes += len(content)
                if self._text_bytes > MAX_TEXT_BYTES:
                    raise BodyError(f"a form's text fields have at most {MAX_TEXT_BYTES} bytes", 413)
                self._part.text += content

    def _end(self) -> None:
        self._complete = True
