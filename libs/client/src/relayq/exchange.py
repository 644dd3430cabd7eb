"""Requests and answers as values, and the rules of repeating them. No I/O here.

A call of the client is a *flow*: a generator that yields the next ``Exchange`` or ``Pause`` and is sent the ``Reply``.
The sessions (``relayq.session``) drive flows over a blocking or an asynchronous connection, so each rule of the
interface is written once.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from queuecore.clock import monotonic
from relayq.download import Download
from relayq.errors import REFUSALS, NotReachable, OutcomeUnknown, Refused, UnexpectedAnswer
from relayq.upload import Body

T = TypeVar("T")
IDEMPOTENT: Final = frozenset({"GET", "DELETE"})
REPEATABLE: Final = frozenset({429, 502, 503, 504})
CONFLICT: Final = 409
MAX_DETAIL_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request. ``path`` is percent-encoded; ``hold_seconds`` is a long poll's wish to be kept waiting.

    ``key`` is its Idempotency-Key; ``repeatable`` says of a POST that the same key and bytes can go out once more.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Body | None = None
    download: Download | None = None
    hold_seconds: float = 0
    key: str = ""
    repeatable: bool = False


class Pause(NamedTuple):
    """Do nothing for so long."""

    seconds: float


class Reply(NamedTuple):
    """An answer; header names are in lower case. A body that a ``Download`` took is not repeated here."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's JSON value.

        Raises:
            UnexpectedAnswer: it is not JSON.
        """
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError as error:
            raise UnexpectedAnswer(f"the answer ({self.status}) is not JSON; is this a relayq server?") from error


Step: TypeAlias = Exchange | Pause
Flow: TypeAlias = Generator[Step, Reply | None, T]


class Patience(NamedTuple):
    """How long a request that may be repeated is, while the server cannot be reached, or says 429 or 503."""

    seconds: float = 30
    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 5


def exchanged(exchange: Exchange, patience: Patience) -> Flow[Reply]:
    """The answer to one request, good or a refusal, after the repeats that are safe.

    GET, DELETE, and a POST whose key makes the server take it once, are repeated after a broken connection, after 429,
    502, 503 and 504, and while the first POST of the key is still being accepted; never before ``Retry-After``.
    Any other POST is repeated only when nothing was sent.

    Raises:
        NotReachable: no connection within the patience.
        OutcomeUnknown: the connection broke while the request was under way (a repeatable one: every time).
    """
    safe = exchange.method in IDEMPOTENT or exchange.repeatable
    trouble = Trouble(patience)
    unknown: OutcomeUnknown | None = None  # a POST of before that may have been carried out: no later refusal undoes it
    while True:
        wanted = 0.0
        try:
            reply = yield exchange
            assert reply is not None  # noqa: S101  the sessions' contract
            if not (safe and _passing(reply)):
                return reply
            wanted = retry_after_seconds(reply.headers) or 0.0
            if not trouble.bearable(wanted):
                if unknown is not None:
                    raise unknown
                return reply
        except NotReachable as error:
            if not trouble.bearable():
                raise unknown or error from error.__cause__
        except OutcomeUnknown as error:
            if error is unknown:
                raise
            error.idempotency_key = exchange.key
            if exchange.body is not None:
                unknown = error
            if exchange.download is not None:
                trouble.progress(exchange.download.received_bytes)
            if not (safe and trouble.bearable()):
                raise
        yield Pause(trouble.pause_seconds(wanted))


def _passing(reply: Reply) -> bool:
    """Whether the same request can get a better answer soon."""
    return reply.status in REPEATABLE or (reply.status == CONFLICT and b'"idempotency_in_flight"' in reply.body)


class Trouble:
    """How long things have gone wrong in a row, measured against a patience."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._since: float | None = None
        self._pause_seconds = patience.first_pause_seconds
        self._progress = 0

    def progress(self, mark: int) -> None:
        """A mark that has grown ends the row."""
        if mark > self._progress:
            self._progress = mark
            self._since = None
            self._pause_seconds = self._patience.first_pause_seconds

    def bearable(self, wanted_seconds: float = 0) -> bool:
        """Whether another try, after the pause that the server wants, is within the patience."""
        now = monotonic()
        if self._since is None:
            self._since = now
        return now + max(wanted_seconds, self._pause_seconds) <= self._since + self._patience.seconds

    def pause_seconds(self, wanted_seconds: float) -> float:
        """The pause before the next try."""
        # Full jitter keeps a crowd of clients from coming back in step; the server's own wish is a lower bound.
        pause = wanted_seconds + self._pause_seconds * random.random()  # noqa: S311  no secret
        self._pause_seconds = min(self._pause_seconds * 2, self._patience.longest_pause_seconds)
        return pause


def accepted(reply: Reply, *also: int) -> Reply:
    """The reply when it is a 2xx or one of ``also``.

    Raises:
        Refused: the class that fits the status.
        UnexpectedAnswer: neither, such as a proxy's redirect.
    """
    if 200 <= reply.status < 300 or reply.status in also:  # noqa: PLR2004  the class of success
        return reply
    raise refusal(reply)


def refusal(reply: Reply) -> Refused | UnexpectedAnswer:
    """The exception for an answer that is not a 2xx."""
    retry_after = retry_after_seconds(reply.headers)
    if reply.headers.get("content-type", "").partition(";")[0].strip() == "application/problem+json":
        problem = reply.json()
        if isinstance(problem, dict):
            code = str(problem.get("code") or "unknown")
            detail = str(problem.get("detail") or problem.get("title") or "no reason given")
            return REFUSALS.get(reply.status, Refused)(reply.status, code, detail, problem, retry_after)
    if reply.status in REFUSALS:  # a proxy in front of the gateway answered
        text = reply.body[:MAX_DETAIL_CHARACTERS].decode("utf-8", "replace").strip() or "no reason given"
        return REFUSALS[reply.status](reply.status, "unknown", text, {}, retry_after)
    return UnexpectedAnswer(f"status {reply.status} is not one of the interface; is this a relayq server?")


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """``Retry-After`` in seconds, given as a number or as an HTTP date; None when absent or unreadable."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
