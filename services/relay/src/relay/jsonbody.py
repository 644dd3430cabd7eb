"""The body of `request: json`: the stored JSON value with the client's params.

An input that is an object gets the params as further members (a param wins over a member of its name). Any other value
becomes ``{"input": value, …params}``; an input of a `text/…` type becomes such a value as a JSON string. Values are
copied as text: no number loses a digit. Of a param that was given several times the values become one array.

Up to ``MERGED_BYTES`` the input is read whole. Above, it is streamed and the params stand behind its members, without
looking for names that stand twice; readers take the last one.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from queuecore.jsontext import check_value, members
from relay.failure import RunFailed
from relay.header import essence

MERGED_BYTES: Final = 4 * 1024 * 1024
_SPACE: Final = b" \t\r\n"
Members = dict[str, str]  # name -> JSON text


class JsonBody(NamedTuple):
    """``length`` is None when it is known only at the end."""

    length: int | None
    chunks: AsyncIterator[bytes]


async def json_body(params: str, content_type: str, size: int, chunks: AsyncIterator[bytes]) -> JsonBody:
    """The request's body from the params and the input's ``chunks`` (``size`` bytes of ``content_type``).

    Raises (also while the body is read):
        RunFailed: the input is not JSON (or, of a `text/…` type, not UTF-8).
        ValueError: ``params`` is not a JSON object.
    """
    more = _together(members(params))
    kind = essence(content_type)
    is_text = kind.startswith("text/") and kind != "text/json"
    if size <= MERGED_BYTES:
        body = _merged(b"".join([chunk async for chunk in chunks]), more, is_text=is_text)
        return JsonBody(len(body), _one(body))
    if is_text:
        return JsonBody(None, _around(b'{"input":"', _escaped(chunks), b'"' + _added(_but_input(more)) + b"}"))
    first, rest = await _peeked(chunks)
    if first.lstrip(_SPACE).startswith(b"{"):
        added = _added(more)
        return JsonBody(size + len(added), _spliced(rest, added) if added else rest)
    head, tail = b'{"input":', _added(_but_input(more)) + b"}"
    return JsonBody(size + len(head) + len(tail), _around(head, rest, tail))


def _together(pairs: Sequence[tuple[str, str]]) -> Members:
    """Each name once; the values of a repeated one as an array."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: found[0] if len(found) == 1 else f"[{','.join(found)}]" for name, found in values.items()}


def _merged(content: bytes, more: Members, *, is_text: bool) -> bytes:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8() from error
    if is_text:
        return _object({"input": json.dumps(text)} | _but_input(more))
    value = text.strip(" \t\r\n")
    try:
        if value.startswith("{"):
            return _object(dict(members(value)) | more) if more else content
        check_value(value)
    except ValueError as error:
        raise RunFailed(
            "invalid_request", f"the stored input is not JSON, which `request: json` needs: {error}"
        ) from error
    return _object({"input": value} | _but_input(more))


def _object(pairs: Members) -> bytes:
    return ("{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in pairs.items()) + "}").encode()


def _but_input(more: Members) -> Members:
    return {name: value for name, value in more.items() if name != "input"}


def _added(more: Members) -> bytes:
    return "".join(f",{json.dumps(name)}:{value}" for name, value in more.items()).encode()


def _not_utf8() -> RunFailed:
    return RunFailed("invalid_request", "the stored input is not UTF-8, which a JSON request needs")


async def _one(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _around(head: bytes, chunks: AsyncIterator[bytes], tail: bytes) -> AsyncIterator[bytes]:
    yield head
    async for chunk in chunks:
        yield chunk
    yield tail


async def _peeked(chunks: AsyncIterator[bytes]) -> tuple[bytes, AsyncIterator[bytes]]:
    """What the stream begins with, up to a character that says something, and the whole stream again."""
    first = b""
    async for chunk in chunks:
        first += chunk
        if first.lstrip(_SPACE) or len(first) > MERGED_BYTES:
            break
    return first, _around(first, chunks, b"")


async def _spliced(chunks: AsyncIterator[bytes], added: bytes) -> AsyncIterator[bytes]:
    """An object's text with more members before its last brace; the end is held back until it is known to be one."""
    held = b""
    async for chunk in chunks:
        if chunk.strip(_SPACE):
            yield held
            held = chunk
        else:
            held += chunk
    end = held.rfind(b"}")
    if end < 0 or held[end + 1 :].strip(_SPACE):
        raise RunFailed("invalid_request", "the stored input begins as a JSON object and does not end as one")
    yield held[:end] + added + held[end:]


async def _escaped(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        async for chunk in chunks:
            yield json.dumps(decoder.decode(chunk))[1:-1].encode()
        _ = decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_utf8() from error
