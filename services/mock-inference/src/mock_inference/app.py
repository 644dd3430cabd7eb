"""The ASGI application: reads the request, behaves as told, answers, and writes all of it into the journal."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from mock_inference import openai
from mock_inference.behaviour import Behaviour, BehaviourError, parse_behaviour
from mock_inference.journal import MAX_REQUESTS, Entry, Journal, State, dump
from mock_inference.openai import Answer, Fault
from mock_inference.settings import Settings
from mock_inference.upload import BodyError, Upload, read_upload

EXIT_DIED: Final = 70
_BLOCK: Final = bytes(range(256)) * 256


def create_app(settings: Settings) -> Starlette:
    """The application; it becomes ready ``ready_after_seconds`` from now."""
    ready_at = time.monotonic() + settings.ready_after_seconds
    journal = Journal()

    async def health(_request: Request) -> Response:
        ready = time.monotonic() >= ready_at
        return _json(dump({"status": "ok" if ready else "loading"}), 200 if ready else 503)

    async def show_journal(request: Request) -> Response:
        after = request.query_params.get("after", "0")
        if not after.isascii() or not after.isdigit():
            return _json(dump({"error": {"message": "after: the id of a request"}}), 400)
        return _json(journal.document(int(after)))

    async def clear_journal(_request: Request) -> Response:
        journal.clear()
        return Response(status_code=204)

    return Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/journal", show_journal, methods=["GET"]),
            Route("/journal", clear_journal, methods=["DELETE"]),
            Route("/{path:path}", Inference(journal, ready_at)),
        ]
    )


class Inference:
    """Every path but the mock's own. One call is one request, one entry of the journal."""

    def __init__(self, journal: Journal, ready_at: float) -> None:
        self._journal = journal
        self._ready_at = ready_at
        # content -> how often it was posted, for mock_times; bounded as the journal is
        self._seen: OrderedDict[str, int] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        request = Request(scope, receive)
        entry = self._journal.open(
            method=request.method,
            path=scope["path"],
            query=scope["query_string"].decode("latin-1"),
            client=f"{request.client.host}:{request.client.port}" if request.client else "",
            headers=request.headers.items(),
            upload=Upload(request.headers.get("content-type", "")),
        )
        # whatever ends this call early, our own stop included, ends the connection
        state: State = "disconnected"
        try:
            answer, refused = await self._read(request, entry)
            state = await self._run(answer, entry, receive, send)
            state = "refused" if refused and state == "answered" else state
        except ClientDisconnect:
            pass
        finally:
            self._journal.end(entry, state)

    async def _read(self, request: Request, entry: Entry) -> tuple[Answer, bool]:
        """The answer to the request once its body was read; True with an error of our own."""
        upload = entry.upload
        try:
            await read_upload(upload, request.stream())
            entry.received()
            self._check_ready()
            entry.behaviour = self._behaviour(request, entry)
            return self._answer(request, entry), False
        except BodyError as error:
            return Fault(error.status, str(error)).answer, True
        except BehaviourError as error:
            return Fault(400, str(error), code="mock_behaviour").answer, True
        except Fault as fault:
            return fault.answer, True

    def _check_ready(self) -> None:
        if time.monotonic() < self._ready_at:
            raise Fault(503, "the model is loading", code="loading")

    def _behaviour(self, request: Request, entry: Entry) -> Behaviour:
        """What the request asks for, or ordinary behaviour when ``mock_times`` is used up."""
        upload = entry.upload
        behaviour = parse_behaviour(
            [*request.query_params.multi_items(), *upload.fields, *_nested(upload), *upload.members.items()]
        )
        if behaviour.times is None:
            return behaviour
        file_sha256 = upload.file.digest.sha256 if upload.file else upload.body.sha256
        content = hashlib.sha256(repr((entry.path, entry.query, upload.fields, file_sha256)).encode()).hexdigest()
        count = self._seen[content] = self._seen.pop(content, 0) + 1
        if len(self._seen) > MAX_REQUESTS:
            _ = self._seen.popitem(last=False)
        return behaviour if count <= behaviour.times else Behaviour()

    def _answer(self, request: Request, entry: Entry) -> Answer:
        """What the path answers, changed as the behaviour says."""
        behaviour, upload = entry.behaviour or Behaviour(), entry.upload
        if request.method != "POST":
            raise Fault(405, f"{request.method} {entry.path}: send a POST")
        if behaviour.response_bytes is not None:
            answer = Answer("application/octet-stream", _counted(behaviour.response_bytes), behaviour.response_bytes)
        elif behaviour.ndjson_lines is not None:
            answer = Answer("application/x-ndjson", _lines(behaviour.ndjson_lines), None)
        elif behaviour.status is not None and behaviour.status >= 300:  # noqa: PLR2004  not a success
            answer = Fault(behaviour.status, f"mock_status asked for {behaviour.status}", code="mock_status").answer
        else:
            match entry.path:
                case "/v1/audio/transcriptions":
                    answer = openai.transcribe(upload, "transcribe")
                case "/v1/audio/translations":
                    answer = openai.transcribe(upload, "translate")
                case "/v1/embeddings":
                    answer = openai.embed(upload)
                case "/v1/chat/completions":
                    answer = openai.chat(upload, entry.id)
                case "/echo":
                    answer = _echo(entry)
                case path:
                    raise Fault(404, f"{path}: no such path", code="not_found")
        return answer._replace(
            status=behaviour.status or answer.status, content_type=behaviour.content_type or answer.content_type
        )

    async def _run(self, answer: Answer, entry: Entry, receive: Receive, send: Send) -> State:
        """Answer while watching for a caller that closes; how it ended."""
        answering = asyncio.create_task(_respond(answer, entry, send))
        watching = asyncio.create_task(_gone(receive))
        try:
            _ = await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else "disconnected"
        finally:
            for task in (answering, watching):
                _ = task.cancel()
            _ = await asyncio.wait({answering, watching})


async def _respond(answer: Answer, entry: Entry, send: Send) -> State:
    behaviour = entry.behaviour or Behaviour()
    await asyncio.sleep(behaviour.delay_seconds)
    if behaviour.die:
        os._exit(EXIT_DIED)
    if behaviour.hang:
        _ = await asyncio.Event().wait()
    entry.state, entry.status = "answering", answer.status
    bodiless = answer.status in {204, 304}
    headers = [] if bodiless else [(b"content-type", answer.content_type.encode("latin-1"))]
    if answer.length is not None and not bodiless:
        headers.append((b"content-length", str(answer.length).encode()))
    if behaviour.retry_after_seconds is not None:
        headers.append((b"retry-after", str(behaviour.retry_after_seconds).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    for piece in () if bodiless else _limited(answer.body, behaviour):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        entry.response_bytes += len(piece)
        # also without a pause: a large answer must not keep the loop from others
        await asyncio.sleep(behaviour.drip_seconds)
    if behaviour.cut_after_bytes is not None and entry.response_bytes == behaviour.cut_after_bytes:
        # without the last message the server closes the connection within the body
        return "cut"
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return "answered"


async def _gone(receive: Receive) -> None:
    """Returns when the caller has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _limited(body: Iterator[bytes], behaviour: Behaviour) -> Iterator[bytes]:
    """The pieces to send: up to the cut, byte by byte when dripping."""
    left = behaviour.cut_after_bytes
    for piece in body:
        kept = piece if left is None else piece[:left]
        if behaviour.drip_seconds:
            yield from (kept[at : at + 1] for at in range(len(kept)))
        elif kept:
            yield kept
        if left is not None:
            left -= len(kept)
            if not left:
                return


def _counted(size: int) -> Iterator[bytes]:
    for start in range(0, size, len(_BLOCK)):
        yield _BLOCK[: size - start]


def _lines(count: int) -> Iterator[bytes]:
    for line in range(1, count + 1):
        yield dump({"line": line, "of": count}) + b"\n"


def _nested(upload: Upload) -> list[tuple[str, object]]:
    """Members of a JSON body's own ``params`` object."""
    params = upload.members.get("params")
    return list(params.items()) if isinstance(params, dict) else []


def _echo(entry: Entry) -> Answer:
    """The facts of the upload."""
    upload = entry.upload
    file = upload.file
    facts = entry.document()
    return openai.json_answer(
        {
            "id": entry.id,
            "bytes": file.digest.size if file else upload.body.size,
            "sha256": file.digest.sha256 if file else upload.body.sha256,
            "content_type": file.content_type if file else upload.content_type,
            "filename": file.filename if file else None,
            "fields": upload.fields,
            "query": entry.query,
            "wav": upload.wav,
            "document": upload.document,
            "parts": facts["parts"],
            "request": {"content_type": upload.content_type, "bytes": upload.body.size, "sha256": upload.body.sha256},
        }
    )


def _json(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json")
