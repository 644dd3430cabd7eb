"""A file on its way to the server: read in chunks, wrapped as multipart/form-data, never whole in memory."""

from __future__ import annotations

import mimetypes
import os
import secrets
import unicodedata
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias, cast

import anyio.to_thread

CHUNK_BYTES: Final = 256 * 1024
OCTETS: Final = "application/octet-stream"

Source: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | Iterable[bytes]
AsyncSource: TypeAlias = Source | AsyncIterable[bytes]
Progress: TypeAlias = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Upload:
    """What is to be sent as the file. ``size`` is None when only the end of the stream will tell."""

    source: AsyncSource
    filename: str
    content_type: str
    size: int | None
    start: int | None = None  # where an open file stood; None: it cannot be rewound, or is none

    @property
    def repeatable(self) -> bool:
        """Whether the same bytes can be had once more."""
        return self.start is not None or isinstance(self.source, str | os.PathLike | bytes)

    @classmethod
    def of(cls, source: AsyncSource, *, filename: str | None = None, content_type: str | None = None) -> Upload:
        """A path (text or PathLike), bytes, a binary file, or an iterator of bytes.

        Raises:
            OSError: the path cannot be read.
            ValueError: ``content_type`` is not one.
        """
        name, size, start = filename or "file", None, None
        if isinstance(source, str | os.PathLike):
            path = Path(source)
            with path.open("rb") as probe:  # refuses a directory or an unreadable file before anything is sent
                size = os.fstat(probe.fileno()).st_size
                if not path.is_file():  # a pipe has no size
                    size = None
            name = filename or path.name
        elif isinstance(source, bytes | bytearray | memoryview):
            source = bytes(source)
            size = len(source)
        elif hasattr(source, "seekable"):
            file = cast("BinaryIO", source)
            start = file.tell() if file.seekable() else None
        media_type = content_type or mimetypes.guess_type(name)[0] or OCTETS
        if not media_type.isascii() or not media_type.isprintable():
            raise ValueError(f"content_type: {media_type!r} is not a media type such as audio/wav")
        return cls(source, name, media_type, size, start)

    def chunks(self) -> Iterator[bytes]:
        """The bytes, in chunks of bounded size as far as we read them ourselves."""
        source = self.source
        if isinstance(source, bytes):
            for start in range(0, len(source), CHUNK_BYTES):
                yield source[start : start + CHUNK_BYTES]
        elif isinstance(source, str | os.PathLike):
            with Path(source).open("rb") as file:
                yield from _pieces(file)
        elif hasattr(source, "read"):
            file = cast("BinaryIO", source)
            if self.start is not None:
                _ = file.seek(self.start)
            yield from _pieces(file)
        elif isinstance(source, AsyncIterable):
            raise TypeError("an asynchronous iterator needs AsyncClient")
        else:
            yield from cast("Iterable[bytes]", source)

    async def async_chunks(self) -> AsyncIterator[bytes]:
        """The same; files are read in a thread, so that a slow disk holds up nobody else."""
        if isinstance(self.source, AsyncIterable) and not hasattr(self.source, "read"):
            async for chunk in self.source:
                yield chunk
            return
        chunks = self.chunks()
        while (chunk := await anyio.to_thread.run_sync(next, chunks, None)) is not None:
            yield chunk


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


@dataclass(frozen=True, slots=True)
class Body:
    """A request body: bytes in front, the file's bytes, bytes behind."""

    content_type: str
    head: bytes
    upload: Upload | None = None
    tail: bytes = b""
    progress: Progress | None = None

    @property
    def length(self) -> int | None:
        """For ``Content-Length``; None = chunked."""
        inner = 0 if self.upload is None else self.upload.size
        return None if inner is None else len(self.head) + inner + len(self.tail)

    def stream(self) -> Generator[bytes, None, None]:
        """The whole body."""
        yield self.head
        if self.upload is not None:
            sent = 0
            for chunk in self.upload.chunks():
                yield chunk
                sent += len(chunk)
                self._report(sent)
        yield self.tail

    async def async_stream(self) -> AsyncGenerator[bytes, None]:
        """The whole body."""
        yield self.head
        if self.upload is not None:
            sent = 0
            async for chunk in self.upload.async_chunks():
                yield chunk
                sent += len(chunk)
                self._report(sent)
        yield self.tail

    def _report(self, sent: int) -> None:
        if self.progress is not None and self.upload is not None:
            self.progress(sent, self.upload.size)


def multipart(fields: Mapping[str, str], upload: Upload, progress: Progress | None = None) -> Body:
    """multipart/form-data (RFC 7578) with the text fields first, so that the server can refuse before the file."""
    boundary = f"relayq-{secrets.token_hex(16)}"
    head = bytearray()
    for name, value in fields.items():
        head += f'--{boundary}\r\nContent-Disposition: form-data; name="{_escaped(name)}"\r\n\r\n{value}\r\n'.encode()
    head += (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{_escaped(upload.filename)}"\r\n'
        f"Content-Type: {upload.content_type}\r\n\r\n"
    ).encode()
    return Body(
        f"multipart/form-data; boundary={boundary}", bytes(head), upload, f"\r\n--{boundary}--\r\n".encode(), progress
    )


def json_body(value: bytes) -> Body:
    """A JSON document."""
    return Body("application/json", value)


def _escaped(text: str) -> str:
    """Inside a quoted string (RFC 9110), as the gateway reads it; control characters could end the header line."""
    return "".join("" if unicodedata.category(c) == "Cc" else f"\\{c}" if c in '"\\' else c for c in text)
