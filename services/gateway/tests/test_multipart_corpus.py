"""Every input of the multipart corpus (data/multipart, families e1, e2, e5, e6, e7) has one written answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_stack import Stack

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parent / "data" / "multipart"
WAV = (DATA.parent / "tiny.wav").read_bytes()
INDEX: dict[str, dict[str, Any]] = {
    entry["name"]: entry for entry in json.loads((DATA / "index.json").read_text("utf-8")) if not entry["big"]
}

# name -> (status, code or stored file name)
EXPECTED: dict[str, tuple[int, str]] = {
    "m01_minimal_ok": (202, "a.wav"),
    "m02_quoted_boundary": (202, "a.wav"),
    "m04_file_part_without_filename": (202, ""),
    "m06_filename_star_only": (202, "\u5f55\u97f3.wav"),
    "m07_filename_plain_and_star_conflict": (202, "safe.wav"),
    "m09_filename_latin1_bytes": (202, "caf\ufffd.wav"),
    "m11_filename_windows_path": (202, "a.wav"),
    "m12_filename_pct_crlf": (202, "a%0D%0AX-Injected: 1.wav"),
    "m14_filename_nul": (202, "a.wav.exe"),
    "m16_decoy_filename_in_quoted": (202, "safe.wav"),
    "m17_truncated_before_close": (400, "malformed_form"),
    "m19_lf_only": (400, "malformed_form"),
    "m21_crlf_preamble_64k": (202, "a.wav"),
    "m22_fields_1001": (400, "too_many_fields"),
    "m24_one_huge_header": (400, "malformed_form"),
    "m26_empty_file": (400, "empty_input"),
    "m27_two_file_parts": (400, "two_files"),
    "m29_nested_mixed": (400, "malformed_form"),
    "m31_part_without_disposition": (400, "malformed_form"),
    "m32_unknown_charset_field": (400, "malformed_form"),
    "m34_charset_param_on_request": (202, "a.wav"),
    "m36_boundary_70": (202, "a.wav"),
    "m37_boundary_4k": (400, "malformed_form"),
    "m39_wrong_content_type_json": (400, "invalid_json"),
}


def test_every_input_has_an_answer() -> None:
    assert set(EXPECTED) == set(INDEX)
    assert {path.stem for path in DATA.glob("*.bin")} == set(INDEX)


async def post(stack: Stack, body: bytes, content_type: str, piece: int) -> httpx.Response:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), piece):
            yield body[start : start + piece]

    return await stack.client.post("/jobs/transcription", content=pieces(), headers={"content-type": content_type})


@pytest.mark.parametrize("piece", [7, 1 << 20], ids=["pieces-of-7", "at-once"])
@pytest.mark.parametrize("name", INDEX)
async def test_form_of_the_corpus_gets_its_answer_and_leaves_nothing_when_refused(
    stack: Stack, name: str, piece: int
) -> None:
    status, answer = EXPECTED[name]

    response = await post(stack, (DATA / f"{name}.bin").read_bytes(), INDEX[name]["content_type"], piece)

    assert response.status_code == status, response.text
    if status == 202:
        [record] = [await stack.brokers["whisper-large-v3"].get(one) for one in stack.job_ids]
        assert record.input_filename == answer
        assert stack.objects == {record.input_key: WAV}
        assert record.input_key == f"{record.id}/input"
    else:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["code"] == answer
        assert stack.objects == {}
        assert stack.job_ids == []


def form(*parts: bytes, close: bytes = b"--b--\r\n") -> bytes:
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + close


MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper-large-v3'
FILE = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' + WAV
BOUNDARY = "multipart/form-data; boundary=b"


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b"", BOUNDARY, 400, "malformed_form"),
        (form(MODEL, FILE), "multipart/form-data", 400, "malformed_form"),
        (form(MODEL, FILE), "multipart/form-data; boundary=", 400, "malformed_form"),
        (form(MODEL, FILE), 'multipart/form-data; boundary="b "', 400, "malformed_form"),
        (form(MODEL, FILE), "multipart/form-data; boundary=other", 400, "malformed_form"),
        (form(MODEL, FILE), "multipart/mixed; boundary=b", 415, "unsupported_media_type"),
        (form(MODEL, FILE), "multipart/form-data boundary=b", 400, "malformed_form"),
        (form(MODEL, FILE), "nonsense", 415, "unsupported_media_type"),
        (b"model=whisper-large-v3", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (form(MODEL), BOUNDARY, 400, "file_missing"),
        (b"--b--\r\n", BOUNDARY, 400, "file_missing"),
        (form(MODEL, FILE, close=b"--b"), BOUNDARY, 400, "malformed_form"),
        (form(MODEL, FILE, close=b"--b-"), BOUNDARY, 400, "malformed_form"),
        (form(MODEL, MODEL, FILE), BOUNDARY, 400, "invalid_request"),
        (form(MODEL, FILE.replace(b'"file"', b'"other"')), BOUNDARY, 400, "unexpected_file"),
        (form(MODEL, FILE.replace(b"audio/wav", b"audio/wav%0d%0aX: 1")), BOUNDARY, 400, "malformed_form"),
        (form(MODEL, FILE.replace(b"audio/wav", b"audio/wav\nX: 1")), BOUNDARY, 400, "malformed_form"),
        (form(MODEL, FILE.replace(b"audio/wav", b"image/png")), BOUNDARY, 415, "unsupported_media_type"),
        (form(MODEL, FILE.replace(WAV, b"%PDF-1.7")), BOUNDARY, 415, "unsupported_media_type"),
        (form(MODEL, b"Content-Transfer-Encoding: base64\r\n" + FILE), BOUNDARY, 400, "malformed_form"),
        (form(MODEL, b'Content-Disposition: form-data; name="x"\r\n' + FILE), BOUNDARY, 400, "malformed_form"),
        (form(MODEL.replace(b"form-data", b"attachment"), FILE), BOUNDARY, 400, "malformed_form"),
        (form(MODEL.replace(b'"model"', b'""'), FILE), BOUNDARY, 400, "malformed_form"),
        (form(MODEL.replace(b'"model"', b'"a\x01"'), FILE), BOUNDARY, 400, "malformed_form"),
        (form(MODEL.replace(b'"model"', b'"\xff"'), FILE), BOUNDARY, 400, "malformed_form"),
        (form(MODEL.replace(b'"model"', b'"' + b"n" * 201 + b'"'), FILE), BOUNDARY, 400, "malformed_form"),
        (form(MODEL.replace(b"whisper", b"\xff"), FILE), BOUNDARY, 400, "malformed_form"),
        (form(MODEL.replace(b"whisper-large-v3", b"unknown"), FILE), BOUNDARY, 400, "model_not_found"),
        (form(FILE, MODEL.replace(b"whisper-large-v3", b"unknown")), BOUNDARY, 400, "model_not_found"),
        (form(MODEL.replace(b'"model"', b'"force"'), FILE), BOUNDARY, 400, "invalid_request"),
        (form(*[b"A: 1\r\n" * 17 + FILE]), BOUNDARY, 400, "malformed_form"),
        (form(MODEL, FILE) + b"x" * 1_100_000, BOUNDARY, 413, "form_too_large"),
        (b"\r\n" * 600_000 + form(MODEL, FILE), BOUNDARY, 413, "form_too_large"),
    ],
)
async def test_form_of_the_same_kinds_is_refused_in_words(
    stack: Stack, body: bytes, content_type: str, status: int, code: str
) -> None:
    response = await post(stack, body, content_type, 1 << 16)

    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.json()["detail"]
    assert stack.objects == {}
    assert stack.job_ids == []


async def test_field_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(stack: Stack) -> None:
    def with_field(size: int) -> bytes:
        return form(MODEL, b'Content-Disposition: form-data; name="prompt"\r\n\r\n' + b"x" * size, FILE)

    taken = await post(stack, with_field(1_048_576), BOUNDARY, 1 << 16)
    refused = await post(stack, with_field(1_048_577), BOUNDARY, 1 << 16)

    assert taken.status_code == 202
    assert (refused.status_code, refused.json()["code"]) == (413, "field_too_large")
    assert "1048576" in refused.json()["detail"]


async def test_a_hundred_thousand_fields_are_refused_early(stack: Stack) -> None:
    field = b'Content-Disposition: form-data; name="k"\r\n\r\nv'
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            piece = form(*[field] * 1000, close=b"")
            sent += len(piece)
            yield piece

    response = await stack.client.post("/jobs/transcription", content=pieces(), headers={"content-type": BOUNDARY})

    assert (response.status_code, response.json()["code"]) == (400, "too_many_fields")
    assert response.headers["connection"] == "close"
    assert sent <= 100 * 1000 * 62


async def test_two_mebibytes_of_fields_are_the_most(stack: Stack) -> None:
    field = b'Content-Disposition: form-data; name="k"\r\n\r\n' + b"x" * 1_000_000

    response = await post(stack, form(MODEL, field, field, field, FILE), BOUNDARY, 1 << 16)

    assert (response.status_code, response.json()["code"]) == (413, "field_too_large")


async def test_fields_before_and_behind_the_file_count_alike(stack: Stack) -> None:
    language = b'Content-Disposition: form-data; name="language"\r\n\r\nen'

    response = await post(stack, form(language, FILE, MODEL), BOUNDARY, 5)

    assert response.status_code == 202
    assert (await stack.brokers["whisper-large-v3"].get(stack.job_ids[0])).params == '{"language":"en"}'
