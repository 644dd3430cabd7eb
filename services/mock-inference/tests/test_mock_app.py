"""The mock's answers and journal, over ASGI."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import struct
import wave
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from mock_inference import journal as journal_module
from mock_inference.app import create_app
from mock_inference.settings import Settings

pytestmark = pytest.mark.anyio

SHAPES = ("/v1/audio/transcriptions", "/v1/audio/translations")


@pytest.fixture
async def mock() -> AsyncGenerator[httpx.AsyncClient, None]:
    transport = httpx.ASGITransport(create_app(Settings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://mock") as client:
        yield client


def sound(seconds: float = 1.5) -> bytes:
    target = io.BytesIO()
    with wave.open(target, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16_000)
        writer.writeframes(bytes(int(seconds * 16_000) * 2))
    return target.getvalue()


async def requests(mock: httpx.AsyncClient, after: int = 0) -> list[dict[str, Any]]:
    return (await mock.get("/journal", params={"after": after})).json()["requests"]


async def test_echo_reports_the_facts_of_the_upload(mock: httpx.AsyncClient) -> None:
    content = sound()
    answer = await mock.post(
        "/echo?x=1", data={"model": "w", "b": ["2", "1"]}, files={"file": ("a b.wav", content, "audio/wav")}
    )

    facts = answer.json()
    assert answer.status_code == 200
    assert facts["bytes"] == len(content)
    assert facts["sha256"] == hashlib.sha256(content).hexdigest()
    assert (facts["content_type"], facts["filename"]) == ("audio/wav", "a b.wav")
    assert facts["fields"] == [["model", "w"], ["b", "2"], ["b", "1"]]
    assert facts["wav"] == {"duration_seconds": 1.5, "sample_rate": 16_000, "channels": 1, "sample_bits": 16}
    assert facts["query"] == "x=1"
    assert facts["parts"][-1]["headers"] == [
        'Content-Disposition: form-data; name="file"; filename="a b.wav"',
        "Content-Type: audio/wav",
    ]


async def test_echo_of_json_and_of_a_raw_body(mock: httpx.AsyncClient) -> None:
    document = (await mock.post("/echo", json={"a": [1, "ü"]})).json()
    raw = (await mock.post("/echo", content=b"\0\1\2", headers={"content-type": "image/png"})).json()

    assert document["document"] == {"a": [1, "ü"]}
    assert document["content_type"] == "application/json"
    assert (raw["bytes"], raw["sha256"], raw["content_type"]) == (
        3,
        hashlib.sha256(b"\0\1\2").hexdigest(),
        "image/png",
    )


@pytest.mark.parametrize("path", SHAPES)
async def test_audio_answers_in_openais_shape_with_the_files_real_facts(mock: httpx.AsyncClient, path: str) -> None:
    content = sound()
    answer = await mock.post(path, data={"model": "w"}, files={"file": ("a.wav", content, "audio/wav")})

    document = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert document["usage"] == {"type": "duration", "seconds": 2}
    assert hashlib.sha256(content).hexdigest() in document["text"]
    assert f"{len(content)} bytes, 1.500 s at 16000 Hz in 1 channel(s)" in document["text"]


@pytest.mark.parametrize(
    ("response_format", "content_type", "start"),
    [
        ("text", "text/plain; charset=utf-8", "transcribe of "),
        ("srt", "text/plain; charset=utf-8", "1\n00:00:00,000 --> 00:00:01,500\ntranscribe of "),
        ("vtt", "text/vtt; charset=utf-8", "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\ntranscribe of "),
    ],
)
async def test_audio_in_other_formats(
    mock: httpx.AsyncClient, response_format: str, content_type: str, start: str
) -> None:
    answer = await mock.post(
        SHAPES[0], data={"response_format": response_format}, files={"file": ("a.wav", sound(), "audio/wav")}
    )

    assert answer.headers["content-type"] == content_type
    assert answer.text.startswith(start)


async def test_verbose_json_has_task_language_duration_and_segments(mock: httpx.AsyncClient) -> None:
    files = {"file": ("a.wav", sound(), "audio/wav")}
    answer = await mock.post(SHAPES[1], data={"response_format": "verbose_json", "language": "de"}, files=files)

    document = answer.json()
    assert (document["task"], document["language"], document["duration"]) == ("translate", "de", 1.5)
    assert document["segments"][0]["end"] == 1.5


async def test_embeddings_depend_on_the_input_alone_and_are_unit_vectors(mock: httpx.AsyncClient) -> None:
    one = (await mock.post("/v1/embeddings", json={"model": "e", "input": ["a b", "c"], "dimensions": 8})).json()
    two = (await mock.post("/v1/embeddings", json={"input": "c", "dimensions": 8, "encoding_format": "base64"})).json()
    tokens = (await mock.post("/v1/embeddings", json={"input": [1, 2, 3]})).json()

    vector = one["data"][1]["embedding"]
    assert one["model"] == "e"
    assert one["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert sum(value * value for value in vector) == pytest.approx(1)
    assert struct.unpack("<8f", base64.b64decode(two["data"][0]["embedding"])) == pytest.approx(vector)
    assert one["data"][0]["embedding"] != vector
    assert len(tokens["data"]) == 1
    assert len(tokens["data"][0]["embedding"]) == 32


async def test_chat_repeats_the_last_message(mock: httpx.AsyncClient) -> None:
    content = [{"type": "text", "text": "good"}, {"type": "image_url"}, {"type": "text", "text": "day"}]
    answer = await mock.post("/v1/chat/completions", json={"model": "c", "messages": [{"content": content}]})

    document = answer.json()
    assert document["object"] == "chat.completion"
    assert document["choices"][0]["message"] == {"role": "assistant", "content": "You said: good day"}
    assert document["usage"] == {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}


async def test_chat_streams_server_sent_events_that_end_with_done(mock: httpx.AsyncClient) -> None:
    answer = await mock.post("/v1/chat/completions", json={"messages": [{"content": "hi"}], "stream": True})

    events = answer.text.split("\n\n")
    assert answer.headers["content-type"] == "text/event-stream"
    assert "content-length" not in answer.headers
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert said == "You said: hi "
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        (SHAPES[0], {"json": {}}, 415, "multipart/form-data"),
        (SHAPES[0], {"files": {"sound": ("a", b"x")}}, 400, "no file part"),
        (SHAPES[0], {"files": {"file": (None, b"x")}}, 400, "no file part"),
        (SHAPES[0], {"files": {"file": ("a", b"x")}, "data": {"response_format": "xml"}}, 400, "response_format"),
        ("/v1/embeddings", {"json": {}}, 400, "input"),
        ("/v1/embeddings", {"json": {"input": []}}, 400, "input"),
        ("/v1/embeddings", {"json": {"input": [""]}}, 400, "input"),
        ("/v1/embeddings", {"json": {"input": "a", "dimensions": 0}}, 400, "dimensions"),
        ("/v1/embeddings", {"json": {"input": "a", "encoding_format": "hex"}}, 400, "encoding_format"),
        ("/v1/embeddings", {"json": [1]}, 400, "not a JSON object"),
        ("/v1/embeddings", {"content": b"x"}, 415, "application/json"),
        ("/v1/chat/completions", {"json": {"messages": []}}, 400, "messages"),
        ("/v1/chat/completions", {"json": {"messages": ["x"]}}, 400, "content"),
        ("/v1/models", {"json": {}}, 404, "no such path"),
        ("/echo", {"json": {"mock_stauts": 1}}, 400, "mock_stauts: unknown (did you mean mock_status?)"),
        ("/echo", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "not JSON"),
    ],
)
async def test_a_bad_request_gets_openais_error_and_the_journal_says_refused(
    mock: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, reason: str
) -> None:
    answer = await mock.post(path, **body)

    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert reason in error["message"]
    (entry,) = await requests(mock)
    assert (entry["state"], entry["status"]) == ("refused", status)


async def test_a_get_is_refused_and_journaled(mock: httpx.AsyncClient) -> None:
    answer = await mock.get("/echo")

    assert answer.status_code == 405
    assert [entry["method"] for entry in await requests(mock)] == ["GET"]


@pytest.mark.parametrize("how", ["form", "json", "params member", "query"])
async def test_behaviours_come_by_form_field_json_member_or_query(mock: httpx.AsyncClient, how: str) -> None:
    match how:
        case "form":
            answer = await mock.post("/echo", data={"mock_status": "418"}, files={"file": ("a", b"x")})
        case "json":
            answer = await mock.post("/echo", json={"mock_status": 418})
        case "params member":
            answer = await mock.post("/echo", json={"params": {"mock_status": 418}})
        case _:
            answer = await mock.post("/echo?mock_status=418", content=b"x")

    assert answer.status_code == 418
    assert answer.json()["error"]["code"] == "mock_status"
    (entry,) = await requests(mock)
    assert (entry["state"], entry["behaviour"]) == ("answered", {"status": 418})


async def test_a_204_has_no_body_and_a_201_the_usual_one(mock: httpx.AsyncClient) -> None:
    nothing = await mock.post("/echo?mock_status=204", content=b"x")
    created = await mock.post("/echo?mock_status=201&mock_content_type=text/plain", content=b"x")

    assert (nothing.status_code, nothing.content) == (204, b"")
    assert "content-type" not in nothing.headers
    assert (created.status_code, created.headers["content-type"]) == (201, "text/plain")
    assert created.json()["bytes"] == 1


@pytest.mark.parametrize("size", [0, 1, 65_536, 200_000])
async def test_an_answer_has_as_many_bytes_as_asked_for(mock: httpx.AsyncClient, size: int) -> None:
    answer = await mock.post(f"/v1/any/path?mock_response_bytes={size}", content=b"x")

    assert answer.headers["content-length"] == str(size)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.content == bytes(index % 256 for index in range(size))


async def test_a_large_error_and_retry_after(mock: httpx.AsyncClient) -> None:
    answer = await mock.post(
        "/echo?mock_status=503&mock_response_bytes=100000&mock_retry_after_seconds=7", content=b"x"
    )

    assert (answer.status_code, len(answer.content), answer.headers["retry-after"]) == (503, 100_000, "7")


async def test_lines_of_json(mock: httpx.AsyncClient) -> None:
    answer = await mock.post("/echo?mock_ndjson_lines=3", content=b"x")

    assert answer.headers["content-type"] == "application/x-ndjson"
    assert "content-length" not in answer.headers
    assert [json.loads(line)["line"] for line in answer.text.splitlines()] == [1, 2, 3]


async def test_a_behaviour_can_be_limited_to_the_first_times_the_same_content_comes(mock: httpx.AsyncClient) -> None:
    async def post(content: bytes) -> int:
        form = {"mock_status": "503", "mock_times": "2"}
        return (await mock.post("/echo", data=form, files={"file": ("a", content)})).status_code

    assert [await post(b"one"), await post(b"one"), await post(b"two"), await post(b"one")] == [503, 503, 503, 200]


async def test_the_journal_tells_each_request_newest_last(mock: httpx.AsyncClient) -> None:
    headers = {"X-Relayq-Job-Id": "j1", "X-Relayq-Attempt": "2"}
    _ = await mock.post(SHAPES[0], data={"tag": "t"}, files={"file": ("a.wav", sound(), "audio/wav")}, headers=headers)
    _ = await mock.post("/echo", json={"tag": "u", "nested": {"x": 1}})

    first, second = await requests(mock)
    assert (first["id"], second["id"]) == (1, 2)
    assert (first["job_id"], first["attempt"]) == ("j1", "2")
    assert ["x-relayq-job-id", "j1"] in first["headers"]
    assert first["fields"] == [["tag", "t"]]
    assert first["file"]["filename"] == "a.wav"
    assert first["file"]["bytes"] == len(sound())
    assert first["wav"]["duration_seconds"] == 1.5
    assert first["started_at"] <= first["received_at"] <= first["ended_at"]
    assert (first["state"], first["status"]) == ("answered", 200)
    assert second["members"] == {"tag": "u", "nested": "<dict>"}
    assert [entry["id"] for entry in await requests(mock, after=1)] == [2]
    assert (await mock.get("/journal?after=x")).status_code == 400


async def test_the_journal_can_be_cleared_and_ids_go_on(mock: httpx.AsyncClient) -> None:
    _ = await mock.post("/echo", content=b"x")

    assert (await mock.delete("/journal")).status_code == 204
    assert await requests(mock) == []
    _ = await mock.post("/echo", content=b"x")
    assert [entry["id"] for entry in await requests(mock)] == [2]


async def test_the_journal_keeps_the_last_requests_only(
    mock: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_REQUESTS", 3)
    for _ in range(5):
        _ = await mock.post("/echo", content=b"x")
    assert [entry["id"] for entry in await requests(mock)] == [3, 4, 5]

    monkeypatch.setattr(journal_module, "MAX_BYTES", 10_000)
    _ = await mock.post("/echo", data={"long": "x" * 9_000}, files={"file": ("a", b"x")})
    kept = await requests(mock)
    assert kept[-1]["fields"] == [["long", "x" * 4_096]]
    assert sum(len(json.dumps(entry)) for entry in kept) <= 10_000


async def test_the_journal_does_not_hold_what_was_uploaded(mock: httpx.AsyncClient) -> None:
    application: Any = mock._transport
    _ = await mock.post("/echo", data={"long": "x" * 1_000_000}, files={"file": ("a", bytes(100_000))})
    inference = application.app.routes[-1].app

    (entry,) = inference._journal._entries
    assert len(entry.final) < 10_000
    assert entry.upload.parts == []
