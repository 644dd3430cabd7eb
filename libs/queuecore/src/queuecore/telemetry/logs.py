"""One line per log record on stdout: JSON for machines or a short form for people.

``configure(service, level, format)`` once, in ``__main__``; everywhere else the standard
``logging.getLogger(__name__)`` with ``extra={"event": Event.JOB_CLAIMED, "job_id": …}``. A JSON line holds
``ts level service event message``, what ``bound`` has bound, and the line's own fields.

Secrets do not pass: fields whose name says secret, passwords and query strings in URLs, Authorization headers and
`key=value` pairs are masked, in exception texts too. A claim_id shows its first 8 characters. Values are cut at
``LONGEST_TEXT`` characters and control characters never reach a terminal.

Imports nothing beyond ``json`` and ``logging`` (and what they import): the relay logs before its first claim.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TextIO

LONGEST_TEXT: Final = 8_192
_DEEPEST: Final = 4
_MASK: Final = "***"

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "event"}
_SECRET_FIELD: Final = re.compile(
    r"authorization|cookie|password|passwd|secret|api[_-]?key|access[_-]?key|encryption[_-]?key|(^|[_-])token$|signature",
    re.IGNORECASE,
)
_URL: Final = re.compile(r"\b([a-z][a-z0-9+.-]{1,15}://)([^\s'\"<>]+)", re.IGNORECASE)
# Quantifiers are bounded or possessive: a hostile text must not cost more than its length.
_MASKS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (
        re.compile(r"\b((?:proxy-)?authorization|(?:set-)?cookie)(['\"]?\s*[:=]\s*['\"]?)[^\r\n'\"]+", re.IGNORECASE),
        rf"\1\2{_MASK}",
    ),
    (re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\1 {_MASK}"),
    (
        re.compile(
            r"([\w-]{0,40}(?:password|passwd|secret|api[_-]?key|access[_-]?key|token))(['\"]?\s*[:=]\s*['\"]?)[^\s,;&'\"}]+",
            re.IGNORECASE,
        ),
        rf"\1\2{_MASK}",
    ),
    (re.compile(r"\bwhsec_[A-Za-z0-9+/=_-]+"), f"whsec_{_MASK}"),
)
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./-]*\Z")  # ids and words: no mask but that of whsec_ matches one
# They tell about every request at INFO or dump headers at DEBUG.
_CHATTY: Final = (
    "aiobotocore", "asyncio", "boto3", "botocore", "httpcore", "httpx", "s3transfer", "urllib3", "uvicorn.access",
)  # fmt: skip


_bound: Final[ContextVar[Mapping[str, object]]] = ContextVar("bound", default=MappingProxyType({}))


@contextmanager
def bound(**fields: object) -> Generator[None, None, None]:
    """Put ``fields`` on every line written in here, by whatever module, and by tasks that begin in here.

    Empty ones are left out; a line's own field of that name wins.
    """
    token = _bound.set({**_bound.get(), **{name: value for name, value in fields.items() if value not in {"", None}}})
    try:
        yield
    finally:
        _bound.reset(token)


def mask(text: str) -> str:
    """``text`` without what looks like a secret, and not longer than ``LONGEST_TEXT``."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]}… ({len(text)} characters)"
    if _PLAIN.match(text) and "whsec_" not in text:
        return text
    text = _URL.sub(_mask_url, text)
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    return text


def _mask_url(found: re.Match[str]) -> str:
    scheme, rest = found[1], found[2]
    # A password may hold any character, so the last @ ends it; a host without : or @ before its path has none.
    host = rest.partition("/")[0]
    if "@" in rest and (":" in host or "@" in host):
        rest = f"{_MASK}@{rest.rpartition('@')[2]}"
    if scheme.lower().startswith("http") and "?" in rest:  # signatures and callers' tokens
        rest = f"{rest.partition('?')[0]}?{_MASK}"
    return scheme + rest


def configure(service: str, level: str, format: str, stream: TextIO | None = None) -> None:  # noqa: A002  LOG_FORMAT
    """Send every record of the process to ``stream`` (stdout) as ``json`` or ``console`` lines; repeatable."""
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(JsonFormatter(service) if format == "json" else ConsoleFormatter(service))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


class _Formatter(logging.Formatter):
    """What both formats share: the fields of a record, masked."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        """``ts level service event message`` and then what was bound."""
        event = getattr(record, "event", None)
        fields: dict[str, object] = {
            "ts": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "service": self._service,
            "event": str(event) if event else "library.logged",
            "message": mask(record.getMessage()),
        }
        if not event:
            fields["logger"] = record.name
        for name, value in {**_bound.get(), **vars(record)}.items():
            if name not in _STANDARD and name not in fields:
                fields[name] = _clean(name, value)
        if record.exc_info and record.exc_info[0]:
            fields["error"] = mask(f"{record.exc_info[0].__name__}: {record.exc_info[1]}")
            fields["stack"] = mask(self.formatException(record.exc_info))
        return fields


class JsonFormatter(_Formatter):
    """One JSON object a line, ASCII only: any text survives any terminal and collector."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        return json.dumps(self.fields(record), separators=(",", ":"))


class ConsoleFormatter(_Formatter):
    """Time, level, event, message and the bound fields as ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; only a stack trace has more."""
        fields = self.fields(record)
        stack = fields.pop("stack", None)
        head = (str(fields.pop(name)) for name in ("ts", "level", "service", "event", "message"))
        moment, level, service, event, message = head
        bound = "".join(f" {name}={_printable(str(value))}" for name, value in fields.items())
        line = f"{moment[11:23]} {level:<7} {service} {event}: {_printable(message)}{bound}"
        if stack is None:
            return line
        return "\n".join((line, *(f"    {_printable(row)}" for row in str(stack).splitlines())))


def _printable(text: str) -> str:
    # A client's text must not forge lines or move a cursor.
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


@lru_cache(maxsize=1_000)
def _is_secret(name: str) -> bool:
    return bool(_SECRET_FIELD.search(name))


def _clean(name: str, value: object, depth: int = 0) -> object:
    """``value`` as JSON can hold it, masked."""
    if _is_secret(name):
        return _MASK
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping) and depth < _DEEPEST:
        items: Mapping[object, object] = value
        return {str(key): _clean(str(key), item, depth + 1) for key, item in items.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth < _DEEPEST:
        members: list[object] = list(value)
        return [_clean("", item, depth + 1) for item in members[:100]]
    text = mask(str(value))
    return text[:8] if name == "claim_id" else text
