"""The client against a scripted server: requests as the interface wants them, answers typed, refusals raised."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path
from typing import Any

import httpx
import pytest

from relayq import (
    AsyncClient,
    Client,
    Conflict,
    Gone,
    InvalidRequest,
    Job,
    NotFound,
    Refused,
    Throttled,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    WaitTimeout,
)

JOB = "01890a5d-ac96-774b-bcce-b302099a8057"


def document(**changes: Any) -> dict[str, Any]:
    return {
        "job_id": JOB,
        "service_type": "transcription",
        "model": "whisper-large-v3",
        "operation": "transcribe",
        "status": "pending",
        "created_at": "2026-01-31T12:00:00.000Z",
        "error": None,
        "result": None,
        **changes,
    }


def problem(status: int, code: str, detail: str = "because", **headers: str) -> httpx.Response:
    return httpx.Response(
        status,
        json={"type": f"urn:relayq:{code}", "code": code, "detail": detail, "status": status},
        headers={"content-type": "application/problem+json", **headers},
    )


def client(*answers: httpx.Response | Callable[[httpx.Request], httpx.Response]) -> tuple[Client, list[httpx.Request]]:
    """A client whose n-th request gets the n-th answer."""
    asked: list[httpx.Request] = []
    queue = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        _ = request.read()
        asked.append(request)
        reply = queue.pop(0)
        return reply(request) if callable(reply) else reply

    return Client("http://server", transport=httpx.MockTransport(answer)), asked


def parts(request: httpx.Request) -> dict[str, tuple[bytes, str | None, str]]:
    """name -> (payload, filename, content type) of a multipart request."""
    head = b"content-type: " + request.headers["content-type"].encode() + b"\r\n\r\n"
    message = BytesParser(policy=HTTP).parsebytes(head + request.content)
    found: dict[str, tuple[bytes, str | None, str]] = {}
    for part in message.iter_parts():  # type: ignore[attr-defined]
        name = str(part.get_param("name", header="content-disposition"))
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        found[name] = (payload, part.get_filename(), part.get_content_type())
    return found


def test_an_item_its_class_and_a_fresh_run_are_asked_for() -> None:
    relayq, asked = client(httpx.Response(200, json=document(deduplicated=True)))

    job = relayq.submit(
        b"x", service_type="transcription", dedup_key="https://h/ü", force=True, content_class="code", priority="high",
        fresh=True,
    )  # fmt: skip

    sent = {name: payload.decode() for name, (payload, _, _) in parts(asked[0]).items() if name != "file"}
    assert sent == {"dedup_key": "https://h/ü", "force": "true", "content_class": "code", "priority": "high"}
    assert asked[0].headers["cache-control"] == "no-cache"
    assert job.deduplicated
    assert not job.reused


def test_a_kept_answer_is_told_from_a_run() -> None:
    relayq, _ = client(
        httpx.Response(200, json=document(), headers={"X-Cache": "hit"}),
        httpx.Response(202, json=document(), headers={"X-Cache": "miss"}),
    )
    assert [relayq.submit(b"x", service_type="transcription").reused for _ in range(2)] == [True, False]


def test_a_run_is_sent_to_its_pipeline_and_its_stages_are_typed() -> None:
    stage = {"stage": "chunk", "status": "processing", "attempts": 1, "started_at": "2026-01-31T12:00:00Z"}
    run = document(pipeline="in/gest", stage="chunk", stages=[stage])
    relayq, asked = client(httpx.Response(202, json=run), httpx.Response(200, json=run))

    job = relayq.submit(b"x", pipeline="in/gest")
    _ = relayq.cancel(job.job_id, pipeline=job.pipeline)

    assert [request.url.raw_path.decode() for request in asked] == [
        "/pipelines/in%2Fgest",
        f"/pipelines/in%2Fgest/{JOB}",
    ]
    assert (job.stages[0].stage, job.stages[0].started_at) == ("chunk", datetime(2026, 1, 31, 12, tzinfo=UTC))
    with pytest.raises(ValueError, match="service_type or pipeline"):
        _ = relayq.submit(b"x")


def test_submit_sends_the_file_last_behind_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "talk.wav"
    _ = path.write_bytes(b"RIFF\r\n\x00\xff")
    relayq, asked = client(httpx.Response(202, json=document(), headers={"etag": '"1"'}))

    job = relayq.submit(
        path,
        service_type="transcription",
        model="whisper-large-v3",
        operation="transcribe",
        params={"language": "de", "temperature": 0},
        priority=True,
        deadline=datetime(2026, 2, 1, tzinfo=UTC),
        ordering_key="call-7",
        callback_url="https://example.com/hook",
        idempotency_key="once",
    )

    assert (job.job_id, job.status, job.etag) == (JOB, "pending", '"1"')
    assert job.created_at == datetime(2026, 1, 31, 12, tzinfo=UTC)
    (request,) = asked
    assert (request.method, request.url.path) == ("POST", "/jobs/transcription")
    assert request.headers["idempotency-key"] == "once"
    assert int(request.headers["content-length"]) == len(request.content)
    sent = parts(request)
    assert list(sent)[-1] == "file"
    payload, filename, media_type = sent["file"]
    assert (payload, filename) == (b"RIFF\r\n\x00\xff", "talk.wav")
    assert media_type.startswith("audio/")
    assert json.loads(sent["params"][0]) == {"language": "de", "temperature": 0}
    assert sent["deadline"][0] == b"2026-02-01T00:00:00+00:00"
    assert sent["priority"][0] == b"true"
    assert sent["ordering_key"][0] == b"call-7"


def test_a_filename_cannot_break_out_of_its_header() -> None:
    relayq, asked = client(httpx.Response(202, json=document()))
    _ = relayq.submit(b"x", service_type="echo", filename='a"; name="model\r\nX: y.bin')
    assert list(parts(asked[0])) == ["file"]


def test_an_iterator_is_sent_chunk_by_chunk_without_a_length() -> None:
    relayq, asked = client(httpx.Response(202, json=document()))

    def chunks() -> Iterator[bytes]:
        yield b"one"
        yield b""
        yield b"two"

    seen: list[tuple[int, int | None]] = []
    _ = relayq.submit(chunks(), service_type="echo", progress=lambda sent, size: seen.append((sent, size)))

    assert "content-length" not in asked[0].headers
    assert parts(asked[0])["file"][0] == b"onetwo"
    assert seen[-1] == (6, None)


def test_a_missing_file_is_an_os_error_before_anything_is_sent(tmp_path: Path) -> None:
    relayq, asked = client()
    with pytest.raises(FileNotFoundError):
        _ = relayq.submit(tmp_path / "none.wav", service_type="echo")
    assert asked == []


def test_a_time_without_offset_is_refused_by_name() -> None:
    relayq, _ = client()
    with pytest.raises(ValueError, match="not_before"):
        _ = relayq.submit(b"x", service_type="echo", not_before=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, Unauthorized),
        (403, Unauthorized),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (413, TooLarge),
        (415, InvalidRequest),
        (422, InvalidRequest),
        (429, Throttled),
        (503, Unavailable),
        (418, Refused),
    ],
)
def test_a_problem_becomes_the_exception_of_its_status(status: int, kind: type[Refused]) -> None:
    answer = problem(status, "some_code", "in words", **{"retry-after": "7"})
    relayq = Client("http://server", patience_seconds=0, transport=httpx.MockTransport(lambda _: answer))
    with pytest.raises(kind) as caught:
        _ = relayq.submit(b"x", service_type="echo")
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code, caught.value.detail) == (status, "some_code", "in words")
    assert caught.value.retry_after_seconds == 7


def test_an_answer_that_is_no_relayq_is_named_as_such() -> None:
    relayq, _ = client(httpx.Response(302, headers={"location": "/login"}))
    with pytest.raises(UnexpectedAnswer, match="302"):
        _ = relayq.status(JOB, service_type="echo")
    relayq, _ = client(httpx.Response(200, text="<html>"))
    with pytest.raises(UnexpectedAnswer, match="JSON"):
        _ = relayq.status(JOB, service_type="echo")
    relayq, _ = client(httpx.Response(200, json={"hello": 1}))
    with pytest.raises(UnexpectedAnswer, match="job_id"):
        _ = relayq.status(JOB, service_type="echo")


MODELS = {
    "models": [
        {"name": "echo", "service_type": "echo"},
        {"name": "whisper-large-v3", "service_type": "transcription"},
        {"name": "whisper-small", "service_type": "transcription"},
    ]
}


def test_a_job_id_alone_is_enough() -> None:
    relayq, asked = client(
        httpx.Response(200, json=MODELS), problem(404, "job_not_found"), httpx.Response(200, json=document())
    )
    assert relayq.status(JOB).service_type == "transcription"
    assert [request.url.path for request in asked] == ["/models", f"/jobs/echo/{JOB}", f"/jobs/transcription/{JOB}"]


def test_an_unknown_job_is_not_found_after_every_service_type() -> None:
    relayq, asked = client(
        httpx.Response(200, json=MODELS), problem(404, "job_not_found"), problem(404, "job_not_found")
    )
    with pytest.raises(NotFound):
        _ = relayq.cancel(JOB)
    assert len(asked) == 3


def test_wait_polls_with_the_etag_until_there_is_a_verdict() -> None:
    relayq, asked = client(
        httpx.Response(200, json=document(), headers={"etag": '"1"'}),
        httpx.Response(304),
        httpx.Response(200, json=document(status="processing"), headers={"etag": '"2"'}),
        httpx.Response(200, json=document(status="completed"), headers={"etag": '"3"'}),
    )
    job = relayq.wait(JOB, service_type="transcription")
    assert job.status == "completed"
    assert job.terminal
    assert [request.headers.get("if-none-match") for request in asked] == [None, '"1"', '"1"', '"2"']
    assert all(int(request.url.params["wait"]) >= 1 for request in asked[1:])


def test_wait_gives_up_with_the_last_document() -> None:
    relayq, _ = client(httpx.Response(200, json=document(status="processing"), headers={"etag": '"1"'}))
    with pytest.raises(WaitTimeout) as caught:
        _ = relayq.wait(JOB, service_type="transcription", timeout_seconds=0)
    assert caught.value.job.status == "processing"


def test_jobs_follow_the_cursor_to_the_end() -> None:
    relayq, asked = client(
        httpx.Response(200, json={"jobs": [document(), document(job_id="b")], "cursor": "next"}),
        httpx.Response(200, json={"jobs": [document(job_id="c")], "cursor": None}),
    )
    assert [job.job_id for job in relayq.jobs(model="m/x", status="pending", page_size=2)] == [JOB, "b", "c"]
    assert dict(asked[0].url.params) == {"model": "m/x", "status": "pending", "limit": "2"}
    assert asked[1].url.params["cursor"] == "next"


def test_cancel_of_a_finished_job_is_a_conflict() -> None:
    relayq, asked = client(problem(409, "wrong_state"))
    with pytest.raises(Conflict):
        _ = relayq.cancel(JOB, service_type="echo")
    assert asked[0].method == "DELETE"


@pytest.mark.anyio
async def test_the_async_client_makes_the_same_calls(tmp_path: Path) -> None:
    asked: list[httpx.Request] = []
    path = tmp_path / "a.bin"
    _ = path.write_bytes(b"z" * 700_000)

    async def answer(request: httpx.Request) -> httpx.Response:
        _ = await request.aread()
        asked.append(request)
        match request.method, request.url.path:
            case "POST", _:
                return httpx.Response(202, json=document(), headers={"etag": '"1"'})
            case "GET", "/jobs":
                return httpx.Response(200, json={"jobs": [document()], "cursor": ""})
            case "GET", where if where.endswith("/result"):
                return httpx.Response(200, content=b"bytes")
            case _:
                facts = {"size": 5, "sha256": ""}
                return httpx.Response(200, json=document(status="completed", result=facts))

    async def stream() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    async with AsyncClient("http://server", transport=httpx.MockTransport(answer)) as relayq:
        _ = await relayq.submit(path, service_type="echo")
        assert len(parts(asked[-1])["file"][0]) == 700_000
        _ = await relayq.submit(stream(), service_type="echo")
        assert parts(asked[-1])["file"][0] == b"ab"
        job: Job = await relayq.wait(JOB, service_type="transcription")
        assert job.status == "completed"
        output = io.BytesIO()
        facts = await relayq.result(JOB, output, service_type="transcription")
        assert (output.getvalue(), facts.size) == (b"bytes", 5)
        assert [found.job_id async for found in relayq.jobs()] == [JOB]
