"""Reading uploads as streams: exact part headers however the body is cut, limits, and facts of WAV files."""

from __future__ import annotations

import hashlib
import io
import tracemalloc
import wave
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mock_inference.upload import MAX_JSON_BYTES, MAX_PARTS, MAX_TEXT_BYTES, BodyError, Upload, read_upload
from mock_inference.wav import wav_facts

pytestmark = pytest.mark.anyio

FORM = "multipart/form-data; boundary=abc"
SOUND = bytes(range(256)) * 8


async def pieces(body: bytes, size: int) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def read(body: bytes, content_type: str = FORM, size: int = 1 << 20) -> Upload:
    upload = Upload(content_type)
    await read_upload(upload, pieces(body, size))
    return upload


def part(headers: str, content: bytes) -> bytes:
    return b"--abc\r\n" + headers.encode() + b"\r\n\r\n" + content + b"\r\n"


def wav(seconds: float, rate: int = 16_000, channels: int = 1, sample_bytes: int = 2) -> bytes:
    target = io.BytesIO()
    with wave.open(target, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(sample_bytes)
        writer.setframerate(rate)
        writer.writeframes(bytes(int(seconds * rate) * channels * sample_bytes))
    return target.getvalue()


BODY = (
    part('Content-Disposition: form-data; name="a"', b"1")
    + part('content-disposition:form-data; name="b"\r\nX-Empty:', b"")
    + part('Content-Disposition:   form-data; name="a"', "zwei 🎧".encode())
    + part(
        'Content-Disposition: form-data; name="file"; filename="gr\u00fc\u00df.wav"\r\nContent-Type:  audio/wav', SOUND
    )
    + b"--abc--\r\n"
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1_000, 1 << 20])
async def test_fields_keep_their_order_and_header_lines_are_exact_in_any_pieces(size: int) -> None:
    upload = await read(BODY, size=size)

    assert upload.fields == [("a", "1"), ("b", ""), ("a", "zwei 🎧")]
    assert [one.headers for one in upload.parts] == [
        ['Content-Disposition: form-data; name="a"'],
        ['content-disposition:form-data; name="b"', "X-Empty:"],
        ['Content-Disposition:   form-data; name="a"'],
        ['Content-Disposition: form-data; name="file"; filename="grüß.wav"', "Content-Type:  audio/wav"],
    ]
    assert upload.file is not None
    assert (upload.file.name, upload.file.filename, upload.file.content_type) == ("file", "grüß.wav", "audio/wav")
    assert upload.file.digest.size == len(SOUND)
    assert upload.file.digest.sha256 == hashlib.sha256(SOUND).hexdigest()
    assert upload.body.sha256 == hashlib.sha256(BODY).hexdigest()


async def test_bytes_that_are_not_utf8_survive_in_names_and_values() -> None:
    upload = await read(
        b'--abc\r\nContent-Disposition: form-data; name="\xff"; filename="\xfe"\r\n\r\nx\r\n'
        b'--abc\r\nContent-Disposition: form-data; name="v"\r\n\r\n\xfd\r\n--abc--\r\n'
    )

    assert (upload.parts[0].name, upload.parts[0].filename) == ("\udcff", "\udcfe")
    assert upload.fields == [("v", "\udcfd")]


@pytest.mark.parametrize(
    ("body", "content_type", "status", "reason"),
    [
        pytest.param(BODY[:-6], FORM, 400, "cut off", id="closing boundary cut"),
        pytest.param(BODY[:300], FORM, 400, "cut off", id="cut within the file"),
        pytest.param(b"", FORM, 400, "cut off", id="empty form"),
        pytest.param(b"no form", FORM, 400, "broken", id="no form"),
        pytest.param(BODY, "multipart/form-data", 400, "needs a boundary", id="no boundary"),
        pytest.param(BODY, f"multipart/form-data; boundary={'b' * 5_000}", 400, "needs a boundary", id="long boundary"),
        pytest.param(part("X: y", b"") + b"--abc--", FORM, 400, "Content-Disposition", id="no disposition"),
        pytest.param(part("X: " + "y" * 10_000, b""), FORM, 400, "Maximum header size", id="huge header"),
        pytest.param(part("X: y\r\n" * 20 + "X: y", b""), FORM, 400, "Maximum header count", id="many headers"),
        pytest.param(
            part('Content-Disposition: form-data; name="a"', b"") * (MAX_PARTS + 1), FORM, 413, "parts", id="many parts"
        ),
        pytest.param(
            part('Content-Disposition: form-data; name="a"', bytes(MAX_TEXT_BYTES + 1)),
            FORM,
            413,
            "text",
            id="long text",
        ),
        pytest.param(b"{", "application/json", 400, "not JSON", id="broken JSON"),
        pytest.param(b"[" * 100_000, "application/json", 400, "not JSON", id="deep JSON"),
        pytest.param(b" " * (MAX_JSON_BYTES + 1), "application/json; charset=utf-8", 413, "at most", id="long JSON"),
    ],
)
async def test_a_bad_body_is_refused_with_a_reason(body: bytes, content_type: str, status: int, reason: str) -> None:
    with pytest.raises(BodyError, match=reason) as caught:
        _ = await read(body, content_type, size=65_536)

    assert caught.value.status == status


@settings(deadline=None)
@given(body=st.binary(max_size=400), data=st.data())
async def test_any_bytes_are_a_form_or_refused(body: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(BODY)))
    for content in (body, b"--abc\r\n" + body, BODY[:at] + body + BODY[at:], BODY[:at] + body):
        try:
            upload = await read(content, size=data.draw(st.integers(1, 500)))
        except BodyError:
            continue
        assert all(one.name for one in upload.parts)


async def test_a_large_file_does_not_cost_memory() -> None:
    async def body() -> AsyncGenerator[bytes, None]:
        yield b'--abc\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        for _ in range(1_000):
            yield bytes(65_536)
        yield b"\r\n--abc--\r\n"

    upload = Upload(FORM)
    tracemalloc.start()
    try:
        await read_upload(upload, body())
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert upload.file is not None
    assert upload.file.digest.size == 65_536_000
    assert peak_bytes < 2_000_000


async def test_a_json_body_has_members_and_no_file_and_any_other_body_is_the_file() -> None:
    document = await read(b'{"a": 1}', "Application/JSON; charset=utf-8")
    raw = await read(b"hello", "text/plain")
    untyped = await read(b"", "")

    assert document.members == {"a": 1}
    assert document.file is None
    assert (await read(b"[1]", "application/json")).members == {}
    assert raw.file is not None
    assert (raw.file.digest.size, raw.file.content_type, raw.file.filename) == (5, "text/plain", None)
    assert untyped.file is not None
    assert (untyped.file.digest.size, untyped.file.content_type) == (0, None)


@pytest.mark.parametrize(
    ("seconds", "rate", "channels", "sample_bytes"), [(0.5, 16_000, 1, 2), (3.25, 44_100, 2, 3), (1, 8_000, 1, 1)]
)
def test_the_facts_of_a_wav_come_from_its_header(seconds: float, rate: int, channels: int, sample_bytes: int) -> None:
    content = wav(seconds, rate, channels, sample_bytes)

    assert wav_facts(content[:65_536], len(content)) == {
        "duration_seconds": seconds,
        "sample_rate": rate,
        "channels": channels,
        "sample_bits": sample_bytes * 8,
    }


def test_the_duration_is_that_of_the_samples_that_came_not_of_the_header() -> None:
    content = wav(2)

    half = wav_facts(content, len(content) - 32_000)
    streamed = wav_facts(content[:40] + b"\xff\xff\xff\xff" + content[44:], len(content))

    assert half is not None
    assert half["duration_seconds"] == 1
    assert streamed is not None
    assert streamed["duration_seconds"] == 2


def test_a_chunk_of_text_before_the_samples_does_not_hide_them() -> None:
    content = wav(1)
    with_list = (
        content[:36] + b"LIST" + (26).to_bytes(4, "little") + b"INFOISFT\x0e\0\0\0Lavf58.29.100\0" + content[36:]
    )

    facts = wav_facts(with_list, len(with_list))

    assert facts is not None
    assert facts["duration_seconds"] == 1


@settings(deadline=None)
@given(st.binary(max_size=100), st.integers(0, 60))
def test_what_is_no_wav_has_no_facts_and_nothing_breaks(noise: bytes, keep: int) -> None:
    assert wav_facts(noise, len(noise)) is None
    assert wav_facts(b"RIFF" + noise, 4 + len(noise)) is None
    damaged = wav(0.001)[:keep] + noise
    facts = wav_facts(damaged, len(damaged))
    assert facts is None or facts["duration_seconds"] >= 0


def test_a_wav_with_no_channels_or_no_rate_has_no_facts() -> None:
    content = bytearray(wav(1))
    content[24:28] = bytes(4)

    assert wav_facts(bytes(content), len(content)) is None
