"""What a request asks the mock to do, beside its work: ``mock_…`` fields, JSON members or query parameters."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mock_inference.settings import MAX_SECONDS

PREFIX: Final = "mock_"
MAX_RESPONSE_BYTES: Final = 1 << 40
_MEDIA_TYPE: Final = re.compile(r"[\x20-\x7e]{1,200}")


class BehaviourError(ValueError):
    """Names the ``mock_…`` field that is unknown or wrong, and the rule."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Each field is the request's ``mock_<field>``; the defaults are an ordinary answer."""

    delay_seconds: float = 0.0
    """Wait this long before the answer."""
    drip_seconds: float = 0.0
    """Send the answer byte by byte, with this pause between two."""
    status: int | None = None
    """Answer with this status; from 300 on with an error document."""
    hang: bool = False
    """Read the request and never answer."""
    die: bool = False
    """End the process without a word, after the delay: the caller sees a broken connection."""
    response_bytes: int | None = None
    """Answer with so many bytes: byte i has the value i mod 256."""
    ndjson_lines: int | None = None
    """Answer with so many lines of JSON, chunked."""
    cut_after_bytes: int | None = None
    """Close the connection after so many bytes of the answer's body."""
    content_type: str | None = None
    """The answer's content type."""
    retry_after_seconds: int | None = None
    """The answer's Retry-After."""
    times: int | None = None
    """Behave so only the first N times that this content is posted to this path; answer as usual from then on."""


def parse_behaviour(pairs: Iterable[tuple[str, object]]) -> Behaviour:
    """The behaviour of a request's fields; the last of a name counts, names without the prefix are not ours.

    Raises:
        BehaviourError: a ``mock_…`` name that does not exist, or a value out of its bounds.
    """
    values: dict[str, Any] = {}
    for name, value in pairs:
        if not name.startswith(PREFIX):
            continue
        field = name.removeprefix(PREFIX)
        if field not in _READERS:
            near = difflib.get_close_matches(field, _READERS, 1)
            raise BehaviourError(f"{name}: unknown{f' (did you mean {PREFIX}{near[0]}?)' if near else ''}")
        values[field] = _READERS[field](name, value)
    return Behaviour(**values)


def _seconds(name: str, value: object) -> float:
    number = _number(value)
    if not 0 <= number <= MAX_SECONDS:
        raise BehaviourError(f"{name}: seconds from 0 to {MAX_SECONDS:g}")
    return number


def _whole(low: int, high: int) -> Callable[[str, object], int]:
    def read(name: str, value: object) -> int:
        number = _number(value)
        if not (low <= number <= high and number.is_integer()):
            raise BehaviourError(f"{name}: a whole number from {low} to {high}")
        return int(number)

    return read


def _flag(name: str, value: object) -> bool:
    words: Mapping[str, bool] = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    word = str(value).strip().lower()
    if word not in words:
        raise BehaviourError(f"{name}: true or false")
    return words[word]


def _media_type(name: str, value: object) -> str:
    if not isinstance(value, str) or not _MEDIA_TYPE.fullmatch(value):
        raise BehaviourError(f"{name}: 1 to 200 printable ASCII characters")
    return value


def _number(value: object) -> float:
    """NaN for what is none, which no bound admits."""
    try:
        return float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan


_READERS: Final[Mapping[str, Callable[[str, object], object]]] = {
    "delay_seconds": _seconds,
    "drip_seconds": _seconds,
    "status": _whole(200, 599),
    "hang": _flag,
    "die": _flag,
    "response_bytes": _whole(0, MAX_RESPONSE_BYTES),
    "ndjson_lines": _whole(0, 1_000_000),
    "cut_after_bytes": _whole(0, MAX_RESPONSE_BYTES),
    "content_type": _media_type,
    "retry_after_seconds": _whole(0, int(MAX_SECONDS)),
    "times": _whole(1, 1_000_000),
}
