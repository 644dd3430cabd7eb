"""What the mock was asked, and how each request ended: the evidence that tests read."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from mock_inference.behaviour import Behaviour
from mock_inference.upload import Part, Upload

MAX_REQUESTS: Final = 10_000
MAX_BYTES: Final = 64 << 20
# of one field; /echo gives them in full
MAX_VALUE_CHARACTERS: Final = 4_096

State = Literal["receiving", "running", "answering", "answered", "refused", "cut", "disconnected"]


def now() -> str:
    """RFC 3339, UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Entry:
    """One request.

    ``state`` goes from receiving (the body) over running and answering to one of: answered; refused (we sent an error
    of our own: not ready, bad body, no such path); cut (as told); disconnected (the caller closed, or we stopped).
    """

    id: int
    method: str
    path: str
    query: str
    client: str  # address and port: another port is another connection
    headers: list[tuple[str, str]]  # of the request; HTTP servers give their names in lower case
    upload: Upload
    state: State = "receiving"
    started_at: str = field(default_factory=now)
    received_at: str | None = None
    ended_at: str | None = None
    behaviour: Behaviour | None = None
    status: int | None = None
    response_bytes: int = 0
    final: bytes | None = None  # the document, once the request is over
    kept: bool = True  # still in the journal

    def received(self) -> None:
        """The whole body is here."""
        self.state, self.received_at = "running", now()

    def document(self) -> dict[str, Any]:
        """As JSON."""
        upload = self.upload
        headers = dict(self.headers)
        return {
            "id": self.id,
            "job_id": headers.get("x-relayq-job-id"),
            "attempt": headers.get("x-relayq-attempt"),
            "method": self.method,
            "path": self.path,
            "query": self.query,
            "client": self.client,
            "headers": self.headers,
            "state": self.state,
            "started_at": self.started_at,
            "received_at": self.received_at,
            "ended_at": self.ended_at,
            "behaviour": _changed(self.behaviour),
            "status": self.status,
            "response_bytes": self.response_bytes,
            "content_type": upload.content_type,
            "bytes": upload.body.size,
            "sha256": upload.body.sha256,
            "fields": [(name, value[:MAX_VALUE_CHARACTERS]) for name, value in upload.fields],
            "parts": [_part(part) for part in upload.parts],
            "file": _part(upload.file) if upload.file else None,
            "wav": upload.wav,
            "members": {name: _short(value) for name, value in itertools.islice(upload.members.items(), 100)},
        }


class Journal:
    """The last requests, newest last: at most ``MAX_REQUESTS``, and ``MAX_BYTES`` of what they were."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._ids = itertools.count(1)

    def open(
        self, *, method: str, path: str, query: str, client: str, headers: Iterable[tuple[str, str]], upload: Upload
    ) -> Entry:
        """A new entry, with the next id; ids go on after ``clear``."""
        entry = Entry(next(self._ids), method, path, query, client, list(headers), upload)
        self._entries.append(entry)
        self._trim()
        return entry

    def end(self, entry: Entry, state: State) -> None:
        """The request is over; the first end counts. What was read of it is kept as text only."""
        if entry.final is None:
            entry.state, entry.ended_at = state, now()
            entry.final = dump(entry.document())
            entry.upload = Upload("")
            if entry.kept:
                self._bytes += len(entry.final)
                self._trim()

    def document(self, after: int = 0) -> bytes:
        """``{"requests": […]}`` with the entries whose id is greater than ``after``."""
        requests = [entry.final or dump(entry.document()) for entry in self._entries if entry.id > after]
        return b'{"requests": [' + b", ".join(requests) + b"]}"

    def clear(self) -> None:
        """Forget all entries; requests under way end unseen."""
        for entry in self._entries:
            entry.kept = False
        self._entries.clear()
        self._bytes = 0

    def _trim(self) -> None:
        while len(self._entries) > MAX_REQUESTS or self._bytes > MAX_BYTES:
            oldest = self._entries.popleft()
            oldest.kept = False
            self._bytes -= len(oldest.final or b"")


def dump(document: object) -> bytes:
    """JSON in ASCII, so that lone surrogates (bytes that are not UTF-8) survive."""
    return json.dumps(document, allow_nan=False, default=str).encode("ascii")


def _part(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "filename": part.filename,
        "content_type": part.content_type,
        "headers": part.headers,
        "bytes": part.digest.size,
        "sha256": part.digest.sha256,
    }


def _changed(behaviour: Behaviour | None) -> dict[str, Any]:
    plain = asdict(Behaviour())
    return {name: value for name, value in asdict(behaviour or Behaviour()).items() if value != plain[name]}


def _short(value: object) -> object:
    if isinstance(value, str):
        return value[:MAX_VALUE_CHARACTERS]
    return value if isinstance(value, (bool, int, float, type(None))) else f"<{type(value).__name__}>"
