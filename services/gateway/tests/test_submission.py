"""POST /jobs/{service_type}: three kinds of body, one set of options, nothing left of what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_stack import MakeStack, Stack

from queuecore.broker import NewJob, Submitted
from queuecore.errors import BlobUnavailable, BrokerUnavailable, OutcomeUnknown
from queuecore.job import JobRecord
from queuecore.names import is_job_id
from queuecore.testing.blobs import MemoryStore
from queuecore.testing.memory import MemoryBroker
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio

CHAT = "meta-llama/Llama-3.1-8B"


async def record_of(stack: Stack, response: httpx.Response) -> JobRecord:
    assert response.status_code == 202, response.text
    return await stack.brokers["large"].get(response.json()["job_id"])


async def refused(stack: Stack, response: httpx.Response, status: int, code: str) -> str:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert stack.objects == {}
    assert stack.job_ids == []
    return str(response.json()["detail"])


# -- the three kinds --------------------------------------------------------------------------------------------


async def test_form_becomes_a_pending_job_with_its_file_in_the_store(stack: Stack, wav: bytes) -> None:
    response = await stack.client.post(
        "/jobs/transcription",
        files={"file": ("Запись №1.wav", wav, "audio/wav")},
        data={"language": "ru", "temperature": "0.20"},
        headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    )
    record = await record_of(stack, response)

    assert is_job_id(record.id)
    assert response.headers["location"] == f"/jobs/transcription/{record.id}"
    assert response.headers["etag"].startswith('W/"')
    assert response.json() == {
        "job_id": record.id, "service_type": "transcription", "model": "whisper-large-v3", "operation": "transcribe",
        "status": "pending", "cancel_requested": False, "priority": False, "queue_position": None, "attempts": 0,
        "reaps": 0, "created_at": "2027-01-15T08:00:00.000Z", "started_at": None, "finished_at": None,
        "expires_at": None, "error": None, "result": None,
        "links": {"self": f"/jobs/transcription/{record.id}", "cancel": f"/jobs/transcription/{record.id}"},
    }  # fmt: skip
    assert stack.objects == {f"{record.id}/input": wav}
    assert (record.input_size, record.input_sha256) == (len(wav), hashlib.sha256(wav).hexdigest())
    assert (record.input_filename, record.input_content_type) == ("Запись №1.wav", "audio/wav")
    assert record.params == '{"language":"ru","temperature":"0.20"}'
    assert (record.request, record.inference_url) == ("multipart", "/v1/audio/transcriptions")
    assert record.traceparent == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert record.tenant == ""


async def test_json_keeps_the_input_and_every_digit_of_the_params(stack: Stack) -> None:
    body = b"""{"params": {"seed": 12345678901234567890123456789, "x": [], "y": 1.50},
        "model": "meta-llama/Llama-3.1-8B", "priority": null, "operation": "complete",
        "input": {"messages": [ {"role":"user", "content":"\\u00e9"} ], "n": 1e400}}"""
    response = await stack.client.post("/jobs/chat", content=body, headers={"content-type": "application/json"})
    record = await record_of(stack, response)

    assert record.params == '{"seed": 12345678901234567890123456789, "x": [], "y": 1.50}'
    assert stack.objects[record.input_key] == (b'{"messages": [ {"role":"user", "content":"\\u00e9"} ], "n": 1e400}')
    assert (record.input_filename, record.input_content_type) == ("input.json", "application/json")
    assert record.request == "json"


async def test_json_members_beside_params_are_params_in_order(stack: Stack) -> None:
    body = b'{"stop": ["a","b"], "params": { "seed": 1, "seed": 2 }, "input": "hello", "top_p": 0.10}'
    response = await stack.client.post("/jobs/chat", content=body, headers={"content-type": "application/json"})

    record = await record_of(stack, response)
    assert record.params == '{"stop":["a","b"],"seed": 1, "seed": 2,"top_p":0.10}'
    assert stack.objects[record.input_key] == b'"hello"'


async def test_raw_body_is_the_file_and_the_query_its_options(stack: Stack) -> None:
    response = await stack.client.post(
        "/jobs/echo?model=small&operation=other&ordering_key=customer-7&lang=d%C3%A9&lang=fr&empty=",
        content=b"\0\xffbytes",
        headers={"content-type": "application/x-thing; v=1", "content-disposition": 'attachment; filename="a/b.bin"'},
    )
    record = await record_of(stack, response)

    assert stack.objects[record.input_key] == b"\0\xffbytes"
    assert (record.model, record.operation, record.ordering_key) == ("small", "other", "customer-7")
    assert record.params == '{"lang":"dé","lang":"fr","empty":""}'
    assert (record.input_filename, record.input_content_type) == ("b.bin", "application/x-thing; v=1")


async def test_raw_body_without_any_type_is_octets(stack: Stack) -> None:
    record = await record_of(stack, await stack.client.post("/jobs/echo?model=large", content=b"?"))

    assert record.input_content_type == "application/octet-stream"


async def test_repeated_fields_of_a_form_stay_repeated_and_in_order(stack: Stack, wav: bytes) -> None:
    response = await stack.client.post(
        "/jobs/transcription",
        data={"timestamp_granularities[]": ["word", "segment"], "params": '{"a": 1}'},
        files={"file": ("a.wav", wav, "audio/wav")},
    )

    record = await record_of(stack, response)
    assert record.params == '{"timestamp_granularities[]":"word","timestamp_granularities[]":"segment","a": 1}'


async def test_params_alone_are_kept_byte_for_byte(stack: Stack, wav: bytes) -> None:
    text = ' {"b" : 1.0,\t"a":{"z":null}, "n": 99999999999999999999, "t": "\\u0416"}\n'
    response = await stack.client.post(
        "/jobs/transcription", data={"params": text}, files={"file": ("a.wav", wav, "audio/wav")}
    )

    assert (await record_of(stack, response)).params == text


# -- the model --------------------------------------------------------------------------------------------------


async def test_model_is_the_named_one_the_only_one_or_the_default(stack: Stack, wav: bytes) -> None:
    named = await stack.client.post("/jobs/echo?model=small&operation=echo", content=b"x")
    default = await stack.client.post("/jobs/echo", content=b"x")
    only = await stack.client.post("/jobs/transcription", content=wav, headers={"content-type": "audio/wav"})

    assert [one.json()["model"] for one in (named, default, only)] == ["small", "large", "whisper-large-v3"]


async def test_choice_that_is_open_is_refused_with_the_list(make_stack: MakeStack) -> None:
    stack = await make_stack(
        models="models: {a: {service_type: s, operations: {o: /o}}, b: {service_type: s, operations: {o: /o}}}"
    )

    assert "a, b" in await refused(stack, await stack.client.post("/jobs/s", content=b"x"), 400, "model_missing")
    unknown = await stack.client.post("/jobs/s?model=c", content=b"x")
    assert "a, b" in await refused(stack, unknown, 400, "model_not_found")


async def test_unknown_service_type_is_404_and_names_those_there_are(stack: Stack) -> None:
    response = await stack.client.post("/jobs/nothing", content=b"x")

    assert "transcription, chat, echo" in await refused(stack, response, 404, "service_type_not_found")


# -- options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "status", "code", "word"),
    [
        ("operation=none", 400, "invalid_request", "operation"),
        ("model=small", 202, "", ""),  # several operations: the first of the file
        ("callback_url=ftp://x/", 400, "invalid_request", "callback_url"),
        ("callback_url=/relative", 400, "invalid_request", "callback_url"),
        ("callback_url=http://u:p@x/", 400, "invalid_request", "callback_url"),
        ("callback_url=http%3A%2F%2Fx%2F%0D%0A", 400, "invalid_request", "callback_url"),
        ("callback_url=http://x:99999/", 400, "invalid_request", "callback_url"),
        ("callback_url=http://[::1/", 400, "invalid_request", "callback_url"),
        ("callback_url=http://x/%23f", 400, "invalid_request", "callback_url"),
        ("callback_url=http://x/" + "a" * 2050, 400, "invalid_request", "callback_url"),
        ("callback_url=https://x.example/hook?a=b", 202, "", ""),
        ("not_before=tomorrow", 400, "invalid_request", "not_before"),
        ("not_before=2030-01-01T00:00:00.5", 400, "invalid_request", "offset"),
        ("deadline=0001-01-01T00:00:00%2B14:00", 400, "invalid_request", "deadline"),
        ("not_before=2030-01-01T00:00:00Z&deadline=2029-01-01T00:00:00Z", 400, "invalid_request", "deadline"),
        ("not_before=2030-01-01T00:00:00Z&deadline=2031-01-01T00:00:00%2B02:00", 202, "", ""),
        ("ordering_key=a%20b", 400, "invalid_request", "ordering_key"),
        ("ordering_key=" + "k" * 201, 400, "invalid_request", "ordering_key"),
        ("priority=maybe", 400, "invalid_request", "priority"),
        ("priority=true", 400, "priority_not_allowed", "GATEWAY_PRIORITY_HEADER"),
        ("priority=false", 202, "", ""),
        ("model=large&model=large", 400, "invalid_request", "model"),
        ("params=%5B%5D", 422, "invalid_params", "params"),
        ("params=%7B%22a%22%3ANaN%7D", 202, "", ""),  # as Python's json writes it
        ("params=%7B%22a%22%3A%22%5Cud800%22%7D", 202, "", ""),
        ("params=%7B%22%5Cud800%22%3A1%7D", 422, "invalid_params", "params"),  # a name has to be text
        ("params=%7B%22a%22%3ANa%7D", 422, "invalid_params", "params"),
        ("params=%7B%22dedup_key%22%3A1%7D", 202, "", ""),  # inside params it is the model's
        ("content_class=code", 400, "invalid_request", "ordered by priority"),
        ("force=true", 400, "invalid_request", "dedup_key"),
        ("dedup_key=a&force=maybe", 400, "invalid_request", "true or false"),
        ("dedup_key=a%00", 400, "invalid_request", "control"),
        ("dedup_key=" + "k" * 2049, 400, "invalid_request", "2048"),
        ("a=%ff", 400, "invalid_request", "query"),
        ("&".join(f"k{n}=1" for n in range(101)), 400, "invalid_request", "query"),
    ],
)
async def test_option_is_checked_and_named(stack: Stack, query: str, status: int, code: str, word: str) -> None:
    response = await stack.client.post(f"/jobs/echo?{query}", content=b"x")

    if status == 202:
        assert response.status_code == 202, response.text
    else:
        assert word in await refused(stack, response, status, code)


async def test_times_reach_the_record_in_milliseconds(stack: Stack) -> None:
    response = await stack.client.post(
        "/jobs/echo?not_before=2030-01-01T00:00:00.5Z&deadline=2030-01-01T03:00:00%2B02:00", content=b"x"
    )

    record = await record_of(stack, response)
    assert (record.not_before, record.deadline) == (1_893_456_000_500, 1_893_459_600_000)


async def test_broken_trace_context_is_ignored(stack: Stack) -> None:
    for header in ("nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff-" + "a" * 32 + "-b7ad6b7169203331-01"):
        response = await stack.client.post("/jobs/echo", content=b"x", headers={"traceparent": header})
        assert (await record_of(stack, response)).traceparent == ""


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        (b"", "invalid_json", "object"),
        (b"[]", "invalid_json", "object"),
        (b"nonsense", "invalid_json", "object"),
        (b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json", "deeply"),
        (b'{"input": "\xff"}', "invalid_json", "UTF-8"),
        (b'{"input": 1, "model": "\\ud800"}', "invalid_request", "model"),
        (b'{"input": Na}', "invalid_json", "object"),
        (b'{"input": 01}', "invalid_json", "object"),
        (b"{}", "file_missing", "input"),
        (b'{"input": 1, "model": 7}', "invalid_request", "model"),
        (b'{"input": 1, "deadline": 99999999999999999999999999}', "invalid_request", "deadline"),
        (b'{"input": 1, "priority": "high"}', "invalid_request", "priority"),
        (b'{"input": 1, "priority": 1}', "invalid_request", "priority"),
        (b'{"input": 1, "force": true}', "invalid_request", "force"),
    ],
)
async def test_json_body_is_checked_and_the_rule_named(stack: Stack, body: bytes, code: str, word: str) -> None:
    response = await stack.client.post("/jobs/chat", content=body, headers={"content-type": "application/json"})

    assert word in await refused(stack, response, 400, code)


async def test_number_of_a_hundred_thousand_digits_passes_through_unread(stack: Stack) -> None:
    body = b'{"input": ' + b"7" * 100_000 + b"}"
    response = await stack.client.post("/jobs/chat", content=body, headers={"content-type": "application/json"})

    assert len(stack.objects[(await record_of(stack, response)).input_key]) == 100_000


# -- priority ---------------------------------------------------------------------------------------------------


async def test_presence_of_the_priority_header_is_priority(make_stack: MakeStack) -> None:
    stack = await make_stack(priority_header="X-Priority")
    plain = await stack.client.post("/jobs/echo", content=b"x")
    by_header = await stack.client.post("/jobs/echo", content=b"x", headers={"x-priority": ""})
    by_field = await stack.client.post("/jobs/echo?priority=true", content=b"x")

    assert [one.json()["priority"] for one in (plain, by_header, by_field)] == [False, True, True]
    assert (await stack.claim("large")).job_id == by_field.json()["job_id"]


async def test_priority_header_means_nothing_when_it_is_not_configured(stack: Stack) -> None:
    response = await stack.client.post("/jobs/echo", content=b"x", headers={"x-priority": "1"})

    assert response.json()["priority"] is False


# -- limits -----------------------------------------------------------------------------------------------------


async def stream(size: int, piece: int = 65_536) -> AsyncIterator[bytes]:
    for start in range(0, size, piece):
        yield b"x" * min(piece, size - start)


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_file_of_exactly_the_limit_is_taken_and_one_byte_more_is_413(
    make_stack: MakeStack, chunked: bool
) -> None:
    stack = await make_stack(max_upload_bytes=100_000)

    def content(size: int) -> Any:
        return stream(size) if chunked else b"x" * size

    over = await stack.client.post("/jobs/echo?model=large", content=content(100_001))
    assert "100000" in await refused(stack, over, 413, "upload_too_large")
    assert over.json()["limit_bytes"] == 100_000
    if chunked:
        assert over.headers["connection"] == "close"

    exact = await stack.client.post("/jobs/echo?model=large", content=content(100_000))
    assert (await record_of(stack, exact)).input_size == 100_000


async def test_file_in_a_form_is_measured_without_the_form_around_it(make_stack: MakeStack) -> None:
    stack = await make_stack(max_upload_bytes=100_000)
    over = await stack.client.post("/jobs/echo", data={"model": "large"}, files={"file": ("a", b"x" * 100_001)})
    _ = await refused(stack, over, 413, "upload_too_large")

    exact = await stack.client.post("/jobs/echo", data={"model": "large"}, files={"file": ("a", b"x" * 100_000)})
    assert (await record_of(stack, exact)).input_size == 100_000


async def test_smaller_limit_of_a_model_counts_wherever_the_model_is_named(stack: Stack) -> None:
    fields = {"model": "small", "operation": "echo"}
    for response in (
        await stack.client.post("/jobs/echo", params=fields, content=stream(1001)),
        await stack.client.post("/jobs/echo", data=fields, files={"file": ("a", b"x" * 1001)}),
        await stack.client.post(
            "/jobs/echo", files=[("file", ("a", b"x" * 1001)), *((k, (None, v)) for k, v in fields.items())]
        ),
        await stack.client.post("/jobs/echo", json={**fields, "input": "x" * 1000}),
    ):
        assert "1000" in await refused(stack, response, 413, "upload_too_large")


async def test_json_body_has_a_limit_of_its_own(make_stack: MakeStack) -> None:
    stack = await make_stack(max_json_bytes=1000)
    response = await stack.client.post("/jobs/chat", json={"input": "x" * 1000})

    _ = await refused(stack, response, 413, "upload_too_large")


async def test_empty_file_is_refused_whatever_brings_it(stack: Stack) -> None:
    for response in (
        await stack.client.post("/jobs/echo", content=b""),
        await stack.client.post("/jobs/echo", files={"file": ("", b"", "application/octet-stream")}),
    ):
        _ = await refused(stack, response, 400, "empty_input")


@requirement("submit:submit:full-queue-refuses")
async def test_full_queue_is_429_and_keeps_nothing_of_the_upload(stack: Stack) -> None:
    query = "model=small&operation=echo"
    for _ in range(3):
        assert (await stack.client.post(f"/jobs/echo?{query}", content=b"x")).status_code == 202
    objects = set(stack.objects)

    response = await stack.client.post(f"/jobs/echo?{query}", content=b"x")

    assert (response.status_code, response.json()["code"]) == (429, "queue_full")
    assert int(response.headers["retry-after"]) > 0
    assert set(stack.objects) == objects
    _ = await stack.claim("small")
    assert (await stack.client.post(f"/jobs/echo?{query}", content=b"x")).status_code == 202


async def test_large_body_for_a_full_queue_is_refused_before_it_is_read(make_stack: MakeStack) -> None:
    stack = await make_stack(models="models: {m: {service_type: s, operations: {o: /o}, max_pending: 1}}")
    assert (await stack.client.post("/jobs/s", content=b"x")).status_code == 202
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        while read < 50_000_000:
            read += 65_536
            yield b"x" * 65_536

    response = await stack.client.post("/jobs/s", content=body())

    assert response.status_code == 429
    assert response.headers["connection"] == "close"
    assert read < 10_000_000
    assert len(stack.objects) == 1


# -- a type by declaration and content --------------------------------------------------------------------------


async def test_type_that_the_model_does_not_take_is_415_before_the_file_is_whole(stack: Stack) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        while read < 50_000_000:
            read += 65_536
            yield b"%PDF-1.7" + b"x" * 65_528

    response = await stack.client.post("/jobs/transcription", content=body(), headers={"content-type": "audio/wav"})

    assert "application/pdf" in await refused(stack, response, 415, "unsupported_media_type")
    assert read < 10_000_000


# -- the queue's server and the store away ----------------------------------------------------------------------


class Faulty(MemoryBroker):
    """Raises what is in ``faults`` before (or, for a lost reply, after) submitting."""

    faults: list[Exception]
    calls = 0

    async def submit(self, job: NewJob) -> Submitted:
        self.calls += 1
        if not self.faults:
            return await super().submit(job)
        fault = self.faults.pop(0)
        if isinstance(fault, OutcomeUnknown) and "ran" in str(fault):
            _ = await super().submit(job)
        raise fault


def faulty(stack: Stack, *faults: Exception) -> Faulty:
    broker = Faulty(stack.queue, "large", stack.queue.specifications["large"])
    broker.faults = list(faults)
    stack.brokers["large"] = broker
    return broker


@requirement("unknown:submit:repeat-changes-nothing")
async def test_lost_reply_of_submit_is_repeated_with_the_same_id(stack: Stack) -> None:
    broker = faulty(stack, OutcomeUnknown("it ran"))

    record = await record_of(stack, await stack.client.post("/jobs/echo", content=b"x"))

    assert broker.calls == 2
    assert stack.job_ids == [record.id]
    assert list(stack.objects) == [record.input_key]


async def test_submit_that_did_not_run_is_503_and_leaves_no_object(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.handlers.submit.SUBMIT_PAUSES_SECONDS", (0, 0))
    broker = faulty(stack, *[BrokerUnavailable("refused")] * 9)

    response = await stack.client.post("/jobs/echo", content=b"x")

    assert broker.calls == 3
    _ = await refused(stack, response, 503, "queue_unavailable")
    assert int(response.headers["retry-after"]) > 0
    assert "refused" not in response.json()["detail"]


@pytest.mark.parametrize("last", [OutcomeUnknown("gone"), BrokerUnavailable("gone")], ids=["unknown", "refused"])
async def test_submit_whose_outcome_stays_unknown_is_503_and_leaves_the_object_to_the_sweeper(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, last: Exception
) -> None:
    monkeypatch.setattr("gateway.handlers.submit.SUBMIT_PAUSES_SECONDS", (0, 0))
    _ = faulty(stack, OutcomeUnknown("it ran"), last, last)

    response = await stack.client.post("/jobs/echo", content=b"x")

    assert (response.status_code, response.json()["code"]) == (503, "outcome_unknown")
    assert "retry-after" in response.headers
    assert list(stack.objects) == [f"{stack.job_ids[0]}/input"]


async def test_accepted_job_is_acknowledged_even_if_it_cannot_be_read_back(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(job_id: str) -> JobRecord:
        raise BrokerUnavailable("just now")

    monkeypatch.setattr(faulty(stack, OutcomeUnknown("it ran")), "get", away)
    response = await stack.client.post("/jobs/echo", content=b"x")

    assert response.status_code == 202
    assert response.json()["job_id"] == stack.job_ids[0]
    assert response.json()["status"] == "pending"
    assert response.json()["created_at"] is not None


class AwayStore(MemoryStore):
    """Takes some of the stream, then says it is away."""

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        async for _ in chunks:
            raise BlobUnavailable(key, "s3.internal:9000 refused the connection")
        return 0


async def test_store_that_is_away_is_503_and_nothing_of_its_text_is_shown(make_stack: MakeStack) -> None:
    stack = await make_stack(store=AwayStore())

    response = await stack.client.post("/jobs/echo", content=stream(1_000_000))

    assert "internal" not in await refused(stack, response, 503, "storage_unavailable")
    assert response.headers["retry-after"]


# -- tenants ----------------------------------------------------------------------------------------------------


async def test_tenant_header_names_the_tenant_and_is_required(make_stack: MakeStack) -> None:
    stack = await make_stack(auth="header", tenant_header="X-Team")

    anonymous = await stack.client.post("/jobs/echo", content=b"x")
    assert "X-Team" in await refused(stack, anonymous, 401, "unauthorized")
    odd = await stack.client.post("/jobs/echo", content=b"x", headers={"x-team": "a b"})
    _ = await refused(stack, odd, 400, "invalid_request")

    response = await stack.client.post("/jobs/echo", content=b"x", headers={"x-team": "blue"})
    assert (await record_of(stack, response)).tenant == "blue"


# -- names ------------------------------------------------------------------------------------------------------


async def test_names_of_the_corpus_are_stored_clean_and_are_never_part_of_a_key(stack: Stack, data: Path) -> None:
    import json

    from gateway.filenames import clean

    for entry in json.loads((data / "filenames.json").read_text("utf-8")):
        name = entry["name"].replace("\u2028", " ")  # httpx leaves no other way to send it
        response = await stack.client.post("/jobs/echo?model=large", files={"file": (name or " ", b"content")})
        if response.status_code != 202:
            assert (response.status_code, response.json()["code"]) == (400, "malformed_form"), (name, response.text)
            continue
        record = await record_of(stack, response)
        assert record.input_filename == clean(record.input_filename)
        assert not set(record.input_filename) & set("\r\n\0/\\")
    assert all(is_job_id(key.removesuffix("/input")) for key in stack.objects)


@requirement("dedup:submit:one-item")
async def test_a_second_submission_of_an_item_is_answered_with_the_first_job_and_leaves_no_object(stack: Stack) -> None:
    url = "/jobs/echo?dedup_key=https%3A%2F%2Fexample.org%2Fa"
    first = await stack.client.post(url, content=b"one")

    second = await stack.client.post(url, content=b"two", headers={"idempotency-key": '"k"'})
    again = await stack.client.post(url, content=b"two", headers={"idempotency-key": '"k"'})
    forced = await stack.client.post(f"{url}&force=true", content=b"three")

    assert first.status_code == 202
    assert "deduplicated" not in first.json()
    assert (second.status_code, again.status_code, forced.status_code) == (200, 200, 202)
    assert second.json()["deduplicated"] is True
    assert second.json()["job_id"] == again.json()["job_id"] == first.json()["job_id"]
    assert second.headers["location"] == first.headers["location"]
    assert forced.json()["job_id"] != first.json()["job_id"]
    assert sorted(stack.objects.values()) == [b"one", b"three"]
    assert len(stack.job_ids) == 2


@requirement("dedup:submit:one-item")
async def test_an_item_whose_first_jobs_record_is_gone_is_named_in_a_409(stack: Stack) -> None:
    first = await stack.client.post("/jobs/echo?model=large&dedup_key=a", content=b"one")
    await stack.complete(await stack.claim("large"), b"{}")
    stack.queue.clock.advance(2 * 86_400_000)  # past the retention of a result, within the window
    stack.objects.clear()  # as the sweep does by then

    refused_now = await stack.client.post("/jobs/echo?model=large&dedup_key=a", content=b"two")

    assert first.json()["job_id"] in await refused(stack, refused_now, 409, "duplicate_item")
