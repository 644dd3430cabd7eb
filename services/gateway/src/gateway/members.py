"""JSON objects whose members stay as they were written: no number loses a digit, no member its place.

``params`` of a job record is such a text: ``""`` or one JSON object. A name that a client gave twice stands in it
twice, in the client's order (the relay reads it so); text fields of a form are JSON strings.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queuecore import jsontext

_SPACE = " \t\r\n"


def object_members(text: bytes) -> dict[str, msgspec.Raw]:
    """The members of a JSON object, values as raw JSON; of a repeated name the last one.

    Raises:
        ValueError: not an object in JSON. Bad UTF-8 and nesting beyond the interpreter's limit are refused; numbers may
            have any length, for nobody converts them, and NaN and lone surrogates stay what they are in values.
    """
    try:
        read = text.decode()
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except msgspec.MsgspecError as error:
        try:  # what the strict reader refuses may be what Python's json writes
            found = {name: msgspec.Raw(value.encode()) for name, value in jsontext.members(read)}
            _ = "".join(found).encode()
        except ValueError:
            raise ValueError(str(error)) from error
        if not found:
            raise ValueError(str(error)) from error
        return found


def member(name: str, value: msgspec.Raw) -> str:
    """``"name":value``."""
    return f"{msgspec.json.encode(name).decode()}:{bytes(value).decode()}"


def inner(text: str) -> str:
    """The members of a valid object's text, without its braces."""
    return text.strip(_SPACE)[1:-1].strip(_SPACE)


def object_of(parts: Sequence[str]) -> str:
    """One object of all these members; "" when there are none."""
    return f"{{{','.join(parts)}}}" if parts else ""
