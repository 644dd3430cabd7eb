"""Bytes on their way to the caller: counted, hashed, resumed after a break, checked at the end."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import BinaryIO, Final

from relayq.errors import UnexpectedAnswer
from relayq.upload import Progress

_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+|\*)\Z")
PARTIAL: Final = 206


class Download:
    """Receives one object into a binary file, across as many answers as it takes."""

    def __init__(self, file: BinaryIO, progress: Progress | None = None) -> None:
        """``progress`` is called with (bytes so far, the size if it is known) as they come."""
        self._file = file
        self._progress = progress
        self.size: int | None = None  # announced; the flow knows it before the first byte
        self._start = file.tell() if file.seekable() else 0
        self._digest = hashlib.sha256()
        self.received_bytes = 0
        self._etag = ""

    @property
    def sha256(self) -> str:
        """Of the bytes so far, in hex."""
        return self._digest.hexdigest()

    def adopt(self, chunk: bytes) -> None:
        """Count bytes that an earlier run has written to the file already."""
        self._digest.update(chunk)
        self.received_bytes += len(chunk)

    def request_headers(self) -> dict[str, str]:
        """Ask for the rest, and for the whole when the object is not the same any more."""
        if not self.received_bytes:
            return {}
        headers = {"range": f"bytes={self.received_bytes}-"}
        # RFC 9110 allows strong validators only; with none, the digest at the end has to tell.
        return headers if self._etag.startswith("W/") or not self._etag else {**headers, "if-range": self._etag}

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of a 200 or 206 answer.

        Raises:
            UnexpectedAnswer: it does not continue where we are, and what was passed on cannot be taken back.
        """
        if status == PARTIAL:
            match = _CONTENT_RANGE.match(headers.get("content-range", ""))
            if match is None or int(match[1]) != self.received_bytes:
                raise UnexpectedAnswer(f"the server sent another range than bytes {self.received_bytes}-")
        elif self.received_bytes:
            self.restart()
        self._etag = headers.get("etag", "")

    def restart(self) -> None:
        """Forget what was received.

        Raises:
            UnexpectedAnswer: the file cannot be rewound.
        """
        if not self._file.seekable():
            raise UnexpectedAnswer("the result changed, or the server cannot resume, and the output cannot be rewound")
        _ = self._file.seek(self._start)
        _ = self._file.truncate()
        self._digest = hashlib.sha256()
        self.received_bytes = 0
        self._etag = ""

    def write(self, chunk: bytes) -> None:
        """The next bytes of an answer."""
        _ = self._file.write(chunk)
        self.adopt(chunk)
        if self._progress is not None:
            self._progress(self.received_bytes, self.size)

    def check(self, size: int | None, sha256: str) -> str:
        """Empty text when the bytes are the announced ones, otherwise what is wrong."""
        if size is not None and self.received_bytes != size:
            return f"{self.received_bytes} bytes arrived, {size} were announced"
        if sha256 and self.sha256 != sha256:
            return f"their SHA-256 is {self.sha256}, announced was {sha256}"
        return ""
