"""Answers in the shapes of OpenAI's API, made from facts of the request: a test can tell them from invented ones."""

from __future__ import annotations

import base64
import hashlib
import math
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, cast

from mock_inference.journal import dump
from mock_inference.upload import Upload

_DIMENSIONS: Final = 32
_MAX_DIMENSIONS: Final = 4_096
_MAX_INPUTS: Final = 2_048


class Answer(NamedTuple):
    """``length`` None: sent chunked. Several pieces are for streaming; they are made when they are sent."""

    content_type: str
    body: Iterator[bytes]
    length: int | None
    status: int = 200


class Fault(Exception):
    """An error in OpenAI's shape."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def answer(self) -> Answer:
        """The error document."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"  # noqa: PLR2004  4xx and 5xx
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return json_answer({"error": error}, status=self.status)


def json_answer(document: object, status: int = 200) -> Answer:
    """One JSON document."""
    return _whole("application/json", dump(document), status)


def transcribe(upload: Upload, task: str) -> Answer:
    """``/v1/audio/transcriptions`` and ``…/translations``: the text says what the file was."""
    if upload.media_type != "multipart/form-data":
        raise Fault(415, "send multipart/form-data with a part named file")
    file = upload.file
    if file is None or file.name != "file":
        raise Fault(400, "the form has no file part with the name file and a filename", param="file")
    fields = dict(upload.fields)
    wav = upload.wav
    duration = wav["duration_seconds"] if wav else 0.0
    sound = f"{duration:.3f} s at {wav['sample_rate']} Hz in {wav['channels']} channel(s)" if wav else "not a PCM WAV"
    text = f"{task} of {file.digest.size} bytes, {sound}, sha256 {file.digest.sha256}"
    match fields.get("response_format", "json"):
        case "json":
            usage = {"type": "duration", "seconds": math.ceil(duration)}
            return json_answer({"text": text, "usage": usage})
        case "verbose_json":
            segment = {"id": 0, "start": 0.0, "end": duration, "text": text}
            language = fields.get("language", "english")
            return json_answer(
                {"task": task, "language": language, "duration": duration, "text": text, "segments": [segment]}
            )
        case "text":
            return _whole("text/plain; charset=utf-8", f"{text}\n".encode())
        case "srt":
            return _whole("text/plain; charset=utf-8", f"1\n{_times(duration, ',')}\n{text}\n\n".encode())
        case "vtt":
            return _whole("text/vtt; charset=utf-8", f"WEBVTT\n\n{_times(duration, '.')}\n{text}\n\n".encode())
        case other:
            raise Fault(400, f"response_format {other!r} is none of json, verbose_json, text, srt, vtt")


def embed(upload: Upload) -> Answer:
    """``/v1/embeddings``: unit vectors that depend on the input alone."""
    request = _members(upload)
    given = request.get("input")
    inputs = cast("list[object]", given) if isinstance(given, list) else [given]
    if inputs and all(isinstance(token, int) for token in inputs):
        inputs = [inputs]
    if not inputs or len(inputs) > _MAX_INPUTS or not all(isinstance(one, (str, list)) and one for one in inputs):
        raise Fault(400, f"input is a text or tokens, or a list of 1 to {_MAX_INPUTS} of them", param="input")
    dimensions = request.get("dimensions", _DIMENSIONS)
    if not isinstance(dimensions, int) or not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise Fault(400, f"dimensions is a whole number from 1 to {_MAX_DIMENSIONS}", param="dimensions")
    encoding = request.get("encoding_format", "float")
    if encoding not in {"float", "base64"}:
        raise Fault(400, "encoding_format is float or base64", param="encoding_format")
    data: list[dict[str, object]] = []
    for index, one in enumerate(inputs):
        vector = _vector(one, dimensions)
        packed = base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
        data.append({"object": "embedding", "index": index, "embedding": packed if encoding == "base64" else vector})
    tokens = sum(_tokens(one) for one in inputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_answer({"object": "list", "data": data, "model": _model(request), "usage": usage})


def chat(upload: Upload, request_id: int) -> Answer:
    """``/v1/chat/completions``: repeats the last message; with ``stream: true`` word by word as SSE."""
    request = _members(upload)
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Fault(400, "messages is a list of at least one message", param="messages")
    contents = [_content(message) for message in cast("list[object]", messages)]
    reply = f"You said: {contents[-1]}"
    head = {
        "id": f"chatcmpl-{request_id}",
        "created": int(datetime.now(UTC).timestamp()),
        "model": _model(request),
    }
    prompt, completion = sum(map(_tokens, contents)), _tokens(reply)
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if request.get("stream") is True:
        return Answer("text/event-stream", _events({**head, "object": "chat.completion.chunk"}, reply, usage), None)
    message = {"role": "assistant", "content": reply}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json_answer({**head, "object": "chat.completion", "choices": [choice], "usage": usage})


def _events(head: dict[str, object], reply: str, usage: dict[str, int]) -> Iterator[bytes]:
    def event(delta: dict[str, str], finish_reason: str | None = None, **more: object) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return b"data: " + dump({**head, "choices": [choice], **more}) + b"\n\n"

    yield event({"role": "assistant", "content": ""})
    for word in reply.split(" "):
        yield event({"content": f"{word} "})
    yield event({}, "stop", usage=usage)
    yield b"data: [DONE]\n\n"


def _members(upload: Upload) -> dict[str, Any]:
    if upload.media_type != "application/json":
        raise Fault(415, "send application/json")
    if not isinstance(upload.document, dict):
        raise Fault(400, "the body is not a JSON object")
    return upload.members


def _content(message: object) -> str:
    content = cast("dict[str, object]", message).get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        parts = [cast("dict[str, object]", part) for part in cast("list[object]", content) if isinstance(part, dict)]
        content = " ".join(str(part["text"]) for part in parts if "text" in part)
    if not isinstance(content, str):
        raise Fault(400, "a message has a content: a text, or a list of parts", param="messages")
    return content


def _vector(one: object, dimensions: int) -> list[float]:
    raw = hashlib.shake_256(dump(one)).digest(4 * dimensions)
    values = [value / 2**31 - 1 for value in struct.unpack(f"<{dimensions}I", raw)]
    norm = math.sqrt(sum(value * value for value in values)) or 1.0
    return [value / norm for value in values]


def _tokens(one: object) -> int:
    return len(one.split()) if isinstance(one, str) else len(cast("list[object]", one))


def _model(request: dict[str, Any]) -> str:
    return str(request.get("model", "mock"))


def _times(duration: float, point: str) -> str:
    minutes, seconds = divmod(duration, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"00:00:00{point}000 --> {hours:02}:{minutes:02}:{seconds:06.3f}".replace(".", point)


def _whole(content_type: str, content: bytes, status: int = 200) -> Answer:
    return Answer(content_type, iter((content,)), len(content), status)
