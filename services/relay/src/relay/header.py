"""Clients' texts made fit for HTTP headers: file names, media types, field names. Pure.

A client's text is data: no byte of it can end a header line, a quoted string or a part (RFC 9110, RFC 7578, WHATWG).
"""

from __future__ import annotations

import re
from typing import Final

DEFAULT_TYPE: Final = "application/octet-stream"
_LONGEST_FILENAME_BYTES: Final = 255
_LONGEST_EXTENSION_BYTES: Final = 32
_LONGEST_TYPE: Final = 255

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  RFC 9110's word, not a password
_ESSENCE: Final = re.compile(rf"({_TOKEN}/{_TOKEN})(?=[ \t]*(?:;|\Z))")
_PARAMETER: Final = rf'[ \t]*;[ \t]*(?:{_TOKEN}=(?:{_TOKEN}|"(?:[\t !#-\[\]-~]|\\[\t -~])*"))?'
_MEDIA_TYPE: Final = re.compile(rf"{_TOKEN}/{_TOKEN}(?:{_PARAMETER})*[ \t]*\Z")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
# What an HTML form sends for these in a name (WHATWG); the other control characters go the same way.
_UNSAFE_IN_NAME: Final = re.compile(r'["\x00-\x1f\x7f]')
_EXTENSIONS: Final = {
    "application/json": ".json", "application/pdf": ".pdf", "audio/flac": ".flac", "audio/mp4": ".m4a",
    "audio/mpeg": ".mp3", "audio/ogg": ".ogg", "audio/wav": ".wav", "audio/webm": ".webm", "audio/x-wav": ".wav",
    "image/jpeg": ".jpg", "image/png": ".png", "image/webp": ".webp", "text/plain": ".txt", "video/mp4": ".mp4",
    "video/webm": ".webm",
}  # fmt: skip
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def utf8(text: str) -> bytes:
    """The text's bytes; a lone surrogate, which has none, becomes `?`."""
    return text.encode("utf-8", "replace")


def media_type(text: str) -> str:
    """``text`` if it is a media type; without its parameters if only they are wrong; else the type of plain bytes."""
    text = text.strip(" \t")
    if len(text) <= _LONGEST_TYPE:
        if _MEDIA_TYPE.match(text):
            return text
        if found := _ESSENCE.match(text):
            return found[1]
    return DEFAULT_TYPE


def essence(text: str) -> str:
    """`type/subtype` in lower case, without parameters."""
    return media_type(text).partition(";")[0].rstrip(" \t").lower()


def quoted(name: str) -> bytes:
    """A name as it stands between the quotes of Content-Disposition (RFC 7578: UTF-8 and no `filename*`)."""
    return utf8(_UNSAFE_IN_NAME.sub(lambda match: f"%{ord(match[0]):02X}", name))


def clean_filename(name: str, content_type: str) -> str:
    """The last part of ``name`` without control characters, at most 255 bytes of UTF-8, with its own extension.

    A nameless file becomes `file` with the extension of its type: model servers judge files by it.
    """
    last = re.split(r"[/\\]", _CONTROL.sub("", name))[-1].strip()
    last = utf8(last).decode()
    if last in {"", ".", ".."}:
        return f"file{_EXTENSIONS.get(essence(content_type), '')}"
    if len(utf8(last)) <= _LONGEST_FILENAME_BYTES:
        return last
    stem, dot, extension = last.rpartition(".")
    tail = f"{dot}{extension}"
    if not stem or len(utf8(tail)) > _LONGEST_EXTENSION_BYTES:
        stem, tail = last, ""
    return utf8(stem)[: _LONGEST_FILENAME_BYTES - len(utf8(tail))].decode("utf-8", "ignore") + tail


def traceparent(text: str) -> str:
    """A W3C trace context, or "" for anything else."""
    return text if _TRACEPARENT.match(text) else ""


def printable(content: bytes, limit: int) -> str:
    """An excerpt of an error's body: one line of printable characters, at most ``limit`` of them."""
    text = "".join(char if char.isprintable() else " " for char in content.decode("utf-8", "replace"))
    return " ".join(text.split())[:limit]
