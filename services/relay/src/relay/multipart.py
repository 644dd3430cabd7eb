"""multipart/form-data for the model: the client's fields in their order, then the file, streamed (RFC 7578).

The length is known beforehand, so no chunked encoding is needed: many model servers do not read it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from relay.header import quoted, utf8

_CRLF: Final = b"\r\n"


class Form(NamedTuple):
    """Everything but the file's bytes."""

    content_type: str
    head: bytes  # up to the file's first byte
    tail: bytes  # from behind its last

    def content_length(self, file_bytes: int) -> int:
        """Length of the whole body."""
        return len(self.head) + file_bytes + len(self.tail)

    async def body(self, file: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The whole body."""
        yield self.head
        async for chunk in file:
            yield chunk
        yield self.tail


def build_form(fields: Sequence[tuple[str, str]], filename: str, content_type: str) -> Form:
    """``filename`` and ``content_type`` are clean already (``relay.header``)."""
    boundary = secrets.token_hex(16).encode()  # 128 random bits: no client can place it in a file
    parts: list[bytes] = []
    for name, value in fields:
        parts += [
            b"--", boundary, _CRLF,
            b'Content-Disposition: form-data; name="', quoted(name), b'"', _CRLF, _CRLF,
            utf8(value), _CRLF,
        ]  # fmt: skip
    parts += [
        b"--", boundary, _CRLF,
        b'Content-Disposition: form-data; name="file"; filename="', quoted(filename), b'"', _CRLF,
        b"Content-Type: ", content_type.encode("ascii"), _CRLF, _CRLF,
    ]  # fmt: skip
    return Form(f"multipart/form-data; boundary={boundary.decode()}", b"".join(parts), b"\r\n--" + boundary + b"--\r\n")
