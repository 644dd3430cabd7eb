"""File names are data: shown, stored and passed on, never part of a path or a key.

What a client may send (RFC 7578, RFC 8187) and what becomes of it:

* ``filename="…"`` wins over ``filename*=…`` (RFC 7578 §4.2 forbids the latter, some clients send it alone: then it is
  decoded);
* ``\\"`` and ``\\\\`` inside quotes are unescaped, other backslashes stay; percent signs stay as they are;
* bytes that are not UTF-8 become U+FFFD;
* of a path the last part counts (``C:\\Users\\me\\a.wav`` is ``a.wav``);
* control characters, line and paragraph separators, lone surrogates and bidirectional overrides are removed, spaces
  at both ends too; ``.`` and ``..`` are no names;
* more than 255 bytes of UTF-8 are cut, the extension kept.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final
from urllib.parse import quote, unquote_to_bytes

LONGEST_BYTES: Final = 255
_LONGEST_EXTENSION: Final = 32
_NAME: Final = re.compile(rb"[ \t]*;[ \t]*([A-Za-z0-9!#$%&'*+.^_`|~-]+)[ \t]*=[ \t]*")
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_BARE: Final = re.compile(rb"[^\s;\"]+")
_EXTENDED: Final = re.compile(rb"([A-Za-z0-9-]+)'[A-Za-z0-9-]*'(.*)", re.DOTALL)
_HIDDEN: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
_BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def parse_disposition(value: bytes) -> tuple[str, dict[str, bytes]]:
    """A Content-Disposition header: its kind in lower case and its parameters, unquoted, names in lower case.

    Raises:
        ValueError: the header does not follow RFC 6266's grammar, or names a parameter twice.
    """
    kind, rest = re.match(rb"[ \t]*([A-Za-z0-9-]+)", value), b""
    if kind is None:
        raise ValueError("no disposition")
    rest = value[kind.end() :].rstrip(b" \t")
    position, parameters = 0, dict[str, bytes]()
    while position < len(rest):
        if not rest[position:].strip(b" \t;"):
            break
        name = _NAME.match(rest, position)
        if name is None:
            raise ValueError("not a list of name=value")
        text = _QUOTED.match(rest, name.end()) or _BARE.match(rest, name.end())
        if text is None:
            raise ValueError(f"no value for {name[1].decode()}")
        found = re.sub(rb'\\(["\\])', rb"\1", text[1]) if text.re is _QUOTED else text[0]
        key = name[1].decode().lower()
        if key in parameters:
            raise ValueError(f"{key} stands twice")
        parameters[key] = found
        position = text.end()
    return kind[1].decode().lower(), parameters


def from_disposition(parameters: dict[str, bytes]) -> str | None:
    """The cleaned name that a disposition gives; None when it gives none.

    Raises:
        ValueError: ``filename*`` is not RFC 8187.
    """
    if "filename" in parameters:
        return clean(parameters["filename"].decode("utf-8", "replace"))
    if "filename*" not in parameters:
        return None
    match = _EXTENDED.fullmatch(parameters["filename*"])
    if match is None or match[1].lower() not in {b"utf-8", b"iso-8859-1"}:
        raise ValueError("filename*: charset'language'percent-encoded, with charset UTF-8 (RFC 8187)")
    return clean(unquote_to_bytes(match[2]).decode(match[1].decode(), "replace"))


def clean(name: str) -> str:
    """``name`` by the rules above; "" when nothing is left."""
    name = re.split(r"[/\\]", name)[-1]
    name = "".join(c for c in name if unicodedata.category(c) not in _HIDDEN and c not in _BIDI).strip()
    if name in {".", ".."}:
        return ""
    if len(name.encode()) <= LONGEST_BYTES:
        return name
    stem, dot, extension = name.rpartition(".")
    if not dot or len(extension.encode()) > _LONGEST_EXTENSION:
        return _cut(name, LONGEST_BYTES)
    return _cut(stem, LONGEST_BYTES - len(extension.encode()) - 1) + dot + extension


def _cut(text: str, most_bytes: int) -> str:
    return text.encode()[:most_bytes].decode("utf-8", "ignore")


def attachment(name: str) -> str:
    """A Content-Disposition for a download named ``name`` (RFC 6266): ASCII for old clients, RFC 8187 for the rest."""
    plain = re.sub(r'[^\x20-\x7e]|["\\%]', "_", name)
    extended = f"; filename*=UTF-8''{quote(name, safe='')}" if plain != name else ""
    return f'attachment; filename="{plain}"{extended}'
