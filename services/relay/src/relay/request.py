"""The request that a job's operation asks for: multipart (fields and file), json or raw."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final, NamedTuple
from urllib.parse import urlencode

from queuecore.job import JobRecord
from relay.failure import RunFailed
from relay.header import clean_filename, media_type, traceparent
from relay.jsonbody import json_body
from relay.multipart import build_form
from relay.params import form_fields

_PATH: Final = re.compile(r"/[\x21-\x7e]*\Z")


class Request(NamedTuple):
    """A POST. ``length`` None: chunked."""

    path: str  # with its query
    headers: list[tuple[str, str]]
    length: int | None
    body: AsyncIterator[bytes]


async def build_request(record: JobRecord, file: AsyncIterator[bytes]) -> Request:
    """The POST for ``record``; ``file`` are the input's ``record.input_size`` bytes.

    Raises:
        RunFailed: the record asks for what cannot be sent.
    """
    path = record.inference_url
    if not _PATH.match(path):
        raise RunFailed("invalid_request", "the operation's url is not a path such as /v1/audio/transcriptions")
    content_type = media_type(record.input_content_type)
    try:
        match record.request:
            case "multipart" | "":
                filename = clean_filename(record.input_filename, content_type)
                form = build_form(form_fields(record.params), filename, content_type)
                content_type, length, body = form.content_type, form.content_length(record.input_size), form.body(file)
            case "json":
                made = await json_body(record.params, content_type, record.input_size, file)
                content_type, length, body = "application/json", made.length, made.chunks
            case "raw":
                query = urlencode(form_fields(record.params), errors="replace")
                path += f"{'&' if '?' in path else '?'}{query}" if query else ""
                length, body = record.input_size, file
            case other:
                raise RunFailed("invalid_request", f"the operation's request kind {other!r} is not known")
    except ValueError as error:
        raise RunFailed("invalid_request", f"the job's params cannot be read: {error}") from error
    headers = [("Content-Type", content_type), ("X-Relayq-Job-Id", record.id), ("X-Relayq-Attempt", str(record.claims))]
    if trace := traceparent(record.traceparent):
        headers.append(("traceparent", trace))
    return Request(path, headers, length, body)
