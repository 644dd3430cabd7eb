"""JSON objects whose members stay as they were written: no number loses a digit, no member its place.

``params`` of a job record is such a text: ``""`` or one JSON object. A name that a client gave twice stands in it
twice, in the client's order (the relay reads it so); text fields of a form are JSON strings.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_SPACE = " \t\r\n"


def object_members(text: bytes) -> dict[str, msgspec.Raw]:
    """The members of a JSON object, values as raw JSON; of a repeated name the last one.

    Raises:
        ValueError: not an object in strict JSON. Bad UTF-8, NaN, lone surrogates and nesting beyond the interpreter's
            limit are refused; numbers may have any length, for nobody converts them.
    """
    try:
        _ = text.decode()
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def member(name: str, value: msgspec.Raw) -> str:
    """``"name":value``."""
    return f"{msgspec.json.encode(name).decode()}:{bytes(value).decode()}"


def inner(text: str) -> str:
    """The members of a valid object's text, without its braces."""
    return text.strip(_SPACE)[1:-1].strip(_SPACE)


def object_of(parts: Sequence[str]) -> str:
    """One object of all these members; "" when there are none."""
    return f"{{{','.join(parts)}}}" if parts else ""
