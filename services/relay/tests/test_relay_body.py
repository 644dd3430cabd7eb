"""Bodies of the three request kinds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecore.job import record_from_fields
from queuecore.jsontext import members
from relay import jsonbody
from relay.failure import RunFailed
from relay.jsonbody import json_body
from relay.multipart import build_form
from relay.params import form_fields
from relay.request import Request, build_request

pytestmark = pytest.mark.anyio
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


async def pieces(content: bytes, size: int = 7) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def sent(request: Request) -> bytes:
    return b"".join([chunk async for chunk in request.body])


async def request_for(content: bytes, **fields: str) -> tuple[Request, bytes]:
    record = record_from_fields(
        {
            "id": "0190",
            "status": "processing",
            "claims": "2",
            "inference_url": "/v1/run",
            "input_size": str(len(content)),
        }
        | fields
    )
    request = await build_request(record, pieces(content))
    body = await sent(request)
    assert request.length in {None, len(body)}
    return request, body


# -- params -------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(), JSON))
def test_members_are_the_objects_own_texts(value: dict[str, Any]) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False)):
        assert {name: json.loads(raw) for name, raw in members(text)} == value


def test_numbers_order_and_repetitions_survive() -> None:
    text = '{"z": 12345678901234567890123, "a": 1.10, "t[]": "word", "t[]": "segment", "n": null, "l": ["x", 2]}'
    assert form_fields(text) == [
        ("z", "12345678901234567890123"), ("a", "1.10"), ("t[]", "word"), ("t[]", "segment"), ("l", "x"), ("l", "2"),
    ]  # fmt: skip
    assert form_fields('{"o": {"k": 1e400}, "b": true}') == [("o", '{"k": 1e400}'), ("b", "true")]
    assert form_fields("") == []


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "x",
        '{"a"}',
        '{"a":1',
        '{"a":1,}',
        "{1:2}",
        '{"a":Na}',
        '{"a":1} x',
        '{"a":1 "b":2}',
        '{"a":' + "[" * 100_000,
    ],
)
def test_what_is_no_object_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"character|line|nested|JSON"):
        _ = members(text)


# -- multipart ----------------------------------------------------------------------------------------------------


async def test_fields_come_in_their_order_and_then_the_file_byte_for_byte() -> None:
    request, body = await request_for(
        b"RIFF\r\n--x\0data",
        params='{"language":"en","t[]":"word","t[]":"segment"}',
        request="multipart",
        input_filename="Запись №1.wav",
        input_content_type="audio/wav",
    )
    headers = dict(request.headers)
    boundary = headers["Content-Type"].removeprefix("multipart/form-data; boundary=")
    lines = body.decode("utf-8").split("\r\n")
    assert lines[0] == f"--{boundary}"
    assert [line for line in lines if line.startswith("Content-")] == [
        'Content-Disposition: form-data; name="language"',
        'Content-Disposition: form-data; name="t[]"',
        'Content-Disposition: form-data; name="t[]"',
        'Content-Disposition: form-data; name="file"; filename="Запись №1.wav"',
        "Content-Type: audio/wav",
    ]
    assert b"\r\n\r\nRIFF\r\n--x\0data\r\n--" + boundary.encode() + b"--\r\n" in body
    assert headers["X-Relayq-Job-Id"] == "0190"
    assert headers["X-Relayq-Attempt"] == "2"


async def test_a_hostile_record_injects_no_header_line() -> None:
    _, body = await request_for(
        b"x",
        params=json.dumps({'a"\r\nX-Injected: 1\r\n\r\n': "v\r\n--b\r\nX-Injected: 2", "\ud800": "\udfff"}),
        request="multipart",
        input_filename='e\r\nX-Injected: 3"; name="f.wav',
        input_content_type="audio/wav\r\nX-Injected: 4",
    )
    boundary = body.split(b"\r\n", 1)[0].removeprefix(b"--")
    document = BytesParser(policy=HTTP).parsebytes(
        b"Content-Type: multipart/form-data; boundary=" + boundary + b"\r\n\r\n" + body
    )
    parts: list[Any] = list(document.iter_parts())
    assert [part.keys() for part in parts] == [
        ["Content-Disposition"], ["Content-Disposition"], ["Content-Disposition", "Content-Type"]
    ]  # fmt: skip
    assert parts[2]["Content-Type"] == "application/octet-stream"
    assert b'filename="eX-Injected: 3%22; name=%22f.wav"' in body


@given(st.lists(st.tuples(st.text(), st.text())), st.text(), st.binary())
def test_the_length_is_known_beforehand(fields: list[tuple[str, str]], filename: str, content: bytes) -> None:
    form = build_form(fields, filename, "audio/wav")
    assert form.content_length(len(content)) == len(form.head + content + form.tail)


# -- json ---------------------------------------------------------------------------------------------------------


async def merged(content: bytes, params: str, content_type: str = "application/json") -> bytes:
    body = await json_body(params, content_type, len(content), pieces(content))
    made = b"".join([chunk async for chunk in body.chunks])
    assert body.length in {None, len(made)}
    return made


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("content", "params", "content_type", "body"),
    [
        ('{"messages": [1.10]}', '{"temperature":0.70}', "application/json", '{"messages":[1.10],"temperature":0.70}'),
        ('{"a":1, "b":2}', '{"a":3}', "application/json", '{"a":3,"b":2}'),
        (' {"a": 1e400}\n', "", "application/json", '{"a":1e400}'),
        ("{ }", '{"a":1}', "application/json", '{"a":1}'),
        ('["x", "y"]', '{"model":"m"}', "application/json", '{"input":["x","y"],"model":"m"}'),
        ('"x"', '{"input":"other","n":1}', "application/json", '{"input":"x","n":1}'),
        ("12345678901234567890123", "", "application/json", '{"input":12345678901234567890123}'),
        ("null", "", "application/vnd.api+json", '{"input":null}'),
        (
            "pla\u00efn \u2028 \U0001f3a4\n",
            '{"n":1}',
            "text/plain",
            '{"input":"pla\u00efn \u2028 \U0001f3a4\\n","n":1}',
        ),
        ("123", '{"t":"a","t":"b"}', "text/plain; charset=utf-8", '{"input":"123","t":["a","b"]}'),
    ],
)
async def test_the_input_and_the_params_become_one_object(  # noqa: PLR0917  one argument a column of the table
    content: str, params: str, content_type: str, body: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if streamed:
        if content == "{ }":
            return  # an input above the bound is not empty
        monkeypatch.setattr(jsonbody, "MERGED_BYTES", 0)
    made = (await merged(content.encode(), params, content_type)).decode()
    assert json.loads(made, parse_int=str, parse_float=str) == json.loads(body, parse_int=str, parse_float=str)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("content", "params", "content_type"),
    [
        (b'{"a":1', '{"b":2}', "application/json"),
        (b'{"a":1} x', '{"b":2}', "application/json"),
        (b"caf\xe9", "", "text/plain"),
    ],
)
async def test_an_input_that_is_not_json_fails_the_job_in_words(
    content: bytes, params: str, content_type: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if streamed:
        monkeypatch.setattr(jsonbody, "MERGED_BYTES", 0)
    with pytest.raises(RunFailed, match="stored input") as caught:
        _ = await merged(content, params, content_type)
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize("content", [b"RIFF\0", b"\xff", b"{1:2}", b"[Na]", b""])
async def test_a_small_input_is_checked_whole(content: bytes) -> None:
    with pytest.raises(RunFailed, match="stored input"):
        _ = await merged(content, '{"a":1}')


@given(st.dictionaries(st.text(min_size=1), JSON, min_size=1), st.dictionaries(st.text(), JSON), st.integers(1, 9))
async def test_a_streamed_object_reads_like_a_merged_one(own: dict[str, Any], more: dict[str, Any], size: int) -> None:
    content = json.dumps(own).encode() + b" \n"
    params = json.dumps(more)

    async def whole() -> bytes:
        body = await json_body(params, "application/json", jsonbody.MERGED_BYTES + 1, pieces(content, size))
        return b"".join([chunk async for chunk in body.chunks])

    assert json.loads(await whole()) == own | more == json.loads(await merged(content, params))


# -- raw and the request itself -----------------------------------------------------------------------------------


async def test_raw_sends_the_file_as_the_body_and_the_params_as_the_query() -> None:
    request, body = await request_for(
        b"bytes",
        params='{"a b":"c&d","n":1}',
        request="raw",
        inference_url="/run?x=1",
        input_content_type="audio/wav",
    )
    assert body == b"bytes"
    assert request.path == "/run?x=1&a+b=c%26d&n=1"
    assert ("Content-Type", "audio/wav") in request.headers


async def test_raw_without_params_has_no_query() -> None:
    request, _ = await request_for(b"", request="raw")
    assert request.path == "/v1/run"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"inference_url": "//evil\r\nHost: x"}, "url"),
        ({"inference_url": ""}, "url"),
        ({"request": "smoke"}, "smoke"),
        ({"params": "[1]"}, "params"),
        ({"params": "[1]", "request": "json"}, "params"),
        ({"params": "[1]", "request": "raw"}, "params"),
    ],
)
async def test_a_record_that_cannot_be_sent_fails_the_job_in_words(fields: dict[str, str], words: str) -> None:
    with pytest.raises(RunFailed, match=words) as caught:
        _ = await request_for(b"x", **fields)
    assert caught.value.code == "invalid_request"


async def test_a_trace_context_is_passed_on() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    request, _ = await request_for(b"x", traceparent=trace)
    assert ("traceparent", trace) in request.headers
