"""JSON texts taken apart without being re-encoded: numbers keep their digits, members their order and repetitions.

Taken as JSON is what Python's own ``json`` writes: NaN, Infinity and lone surrogates too. Clients and models are Python
programs more often than not, and what one of them sends the other is to get.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

_SPACE: Final = re.compile(r"[ \t\r\n]*")


_decoder: Final = json.JSONDecoder()


def members(text: str) -> list[tuple[str, str]]:
    """(name, JSON text of the value) of an object's members; none of "".

    Raises:
        ValueError: ``text`` is not a JSON object.
    """
    return list(parts(text, "{}")) if text else []


def check_value(text: str) -> None:
    """Raise ``ValueError`` unless ``text`` is one JSON value."""
    _, end = _value(text, _skip(text, 0))
    _end(text, end)


def parts(text: str, brackets: str) -> Iterator[tuple[str, str]]:
    """The parts of an object (``{}``) or of a list (``[]``, whose names are "").

    Raises:
        ValueError: it is none.
    """
    opening, closing = brackets
    position = _after(text, _skip(text, 0), opening)
    if text[position : position + 1] == closing:
        _end(text, position + 1)
        return
    while True:
        name = ""
        if opening == "{":
            if text[position : position + 1] != '"':
                raise ValueError(f"a name in quotes is expected at character {position}")
            name, position = _value(text, position)
            position = _after(text, _skip(text, position), ":")
        _, end = _value(text, position)
        yield name, text[position:end]
        position = _skip(text, end)
        if text[position : position + 1] == closing:
            _end(text, position + 1)
            return
        position = _after(text, position, ",")


def _value(text: str, position: int) -> tuple[Any, int]:
    try:
        return _decoder.raw_decode(text, position)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _after(text: str, position: int, char: str) -> int:
    if text[position : position + 1] != char:
        raise ValueError(f"{char!r} is expected at character {position}")
    return _skip(text, position + 1)


def _end(text: str, position: int) -> None:
    if _skip(text, position) != len(text):
        raise ValueError(f"nothing is expected at character {position}")
