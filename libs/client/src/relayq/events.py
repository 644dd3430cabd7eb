"""A job's changes as they happen: server-sent events, read from a stream that may break and go on. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from relayq.errors import NotReachable, OutcomeUnknown, RelayqError, UnexpectedAnswer
from relayq.exchange import Exchange, Patience, Reply, Trouble, refusal, retry_after_seconds

OK: Final = 200
NO_MORE: Final = 204
PASSING: Final = frozenset({429, 502, 503, 504})
MAX_EVENT_BYTES: Final = 4 * 1_048_576


class Event(NamedTuple):
    """``name`` is ``status``, ``progress`` or ``done``; ``data`` its JSON value, a status document mostly."""

    name: str
    id: str
    data: Any


class EventFeed:
    """Reads one job's stream across as many connections as it takes, each beginning after the last event seen."""

    def __init__(self, path: str, patience: Patience, last_event_id: str = "") -> None:
        self._path = path
        self._trouble = Trouble(patience)
        self._last_id = last_event_id
        self._buffer = bytearray()
        self._seen = 0
        self._pause_seconds = 1.0
        self.done = False

    def exchange(self) -> Exchange:
        """The next request."""
        self._buffer.clear()  # an event that broke off is sent again
        headers = {"accept": "text/event-stream"} | ({"last-event-id": self._last_id} if self._last_id else {})
        return Exchange("GET", self._path, headers=headers)

    def begin(self, reply: Reply) -> None:
        """The head of an answer, with its body unless it is a stream.

        Raises:
            Refused, UnexpectedAnswer: for good; a passing refusal only sets the pause.
        """
        if reply.status == NO_MORE:
            self.done = True
        elif reply.status in PASSING:
            wanted = retry_after_seconds(reply.headers) or 0.0
            if not self._trouble.bearable(wanted):
                raise refusal(reply)
            self._pause_seconds = self._trouble.pause_seconds(wanted)
        elif reply.status != OK:
            raise refusal(reply)
        elif not reply.headers.get("content-type", "").startswith("text/event-stream"):
            raise UnexpectedAnswer("the answer is no event stream; is this a relayq server?")

    def take(self, chunk: bytes) -> Iterator[Event]:
        """The events that this chunk completes.

        Raises:
            UnexpectedAnswer: these are not a gateway's events.
        """
        self._buffer += chunk.replace(b"\r\n", b"\n")
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise UnexpectedAnswer(f"an event of more than {MAX_EVENT_BYTES} bytes; is this a relayq server?")
        while (end := self._buffer.find(b"\n\n")) >= 0:
            block = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            event = self._event(block)
            if event is not None:
                self._seen += 1
                self._trouble.progress(self._seen)
                yield event

    def pause_seconds(self, error: RelayqError | None = None) -> float:
        """How long to wait before the next request, after the stream ended or broke.

        Raises:
            RelayqError: the one given, when it is no broken connection or the patience is over.
        """
        if error is None:
            return self._pause_seconds
        if not isinstance(error, NotReachable | OutcomeUnknown) or not self._trouble.bearable():
            raise error
        return self._trouble.pause_seconds(0)

    def _event(self, block: bytes) -> Event | None:
        name, data, event_id = "", [], self._last_id
        for line in block.decode("utf-8", "replace").split("\n"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            match field:
                case "event":
                    name = value
                case "data":
                    data.append(value)
                case "id":
                    event_id = value
                case "retry" if value.isdigit():
                    self._pause_seconds = int(value) / 1000
                case _:
                    pass  # a comment, or a field of a later day
        self._last_id = event_id
        if not data:
            return None
        try:
            found = Event(name or "message", event_id, msgspec.json.decode("\n".join(data)))
        except msgspec.DecodeError as error:
            raise UnexpectedAnswer("an event without JSON; is this a relayq server?") from error
        self.done = self.done or found.name == "done"
        return found
