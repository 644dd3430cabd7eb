"""``params`` of a job record: the client's own fields, on their way from the form to the inference server unchanged.

One JSON text, one of three shapes:

* ``""``: there are none;
* a JSON object: names in the client's order. When the client sent nothing but a ``params`` object it is that text,
  byte for byte;
* a JSON array of ``[name, value]`` pairs in the client's order: only when a name was given more than once
  (``timestamp_granularities[]=word`` and again ``=segment``).

Values are kept as the JSON they came as (an integer of 30 digits stays one); text fields of a form are JSON strings.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

Pair = tuple[str, msgspec.Raw]


def join(pairs: Sequence[Pair]) -> str:
    """The record's text for these fields."""
    if not pairs:
        return ""
    if len({name for name, _ in pairs}) == len(pairs):
        return msgspec.json.encode(dict(pairs)).decode()
    return msgspec.json.encode(pairs).decode()


def split(text: str) -> list[Pair]:
    """The fields of the record's text, each value as raw JSON, in order.

    Raises:
        ValueError: the text has none of the three shapes.
    """
    if not text:
        return []
    try:
        if text.lstrip().startswith("["):
            return msgspec.json.decode(text, type=list[Pair])
        return [(name, msgspec.Raw(bytes(value))) for name, value in object_members(text.encode()).items()]
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"params: {error}") from error


def object_members(text: bytes) -> dict[str, msgspec.Raw]:
    """The members of a JSON object, values as raw JSON; of a repeated name the last one counts (RFC 8259 §4).

    Raises:
        ValueError: not an object in strict JSON: bad UTF-8, NaN, lone surrogates and nesting beyond the interpreter's
            limit are refused.
    """
    try:
        _ = text.decode()
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def field_text(value: msgspec.Raw) -> str:
    """A value as the text of a form field: a string as it is, anything else as its JSON.

    Raises:
        ValueError: the value is a string that is not valid JSON.
    """
    raw = bytes(value)
    if not raw.startswith(b'"'):
        return raw.decode()
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError as error:
        raise ValueError(f"params: {error}") from error
