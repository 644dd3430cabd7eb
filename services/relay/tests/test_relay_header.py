"""Case E9: no text of a client ends a header line, a quoted string or a part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.header import clean_filename, essence, media_type, printable, quoted, traceparent

NAMES = [case["name"] for case in json.loads((Path(__file__).parent / "data" / "filenames.json").read_text("utf-8"))]


@pytest.mark.parametrize(
    ("given_type", "sent"),
    [
        ("audio/wav", "audio/wav"),
        ("Audio/WAV", "Audio/WAV"),
        ("text/plain; charset=utf-8", "text/plain; charset=utf-8"),
        ('multipart/mixed;boundary="a b"', 'multipart/mixed;boundary="a b"'),
        ("audio/webm;codecs=opus", "audio/webm;codecs=opus"),
        ("audio/wav%0d%0aX: 1", "application/octet-stream"),
        ("audio/wav\r\nX-Injected: 1", "application/octet-stream"),
        ("audio/wav; a=b\r\nX-Injected: 1", "audio/wav"),
        ("audio/wav; charset=\u00e9", "audio/wav"),
        ('audio/wav; a="b\\', "audio/wav"),
        ("audio", "application/octet-stream"),
        ("", "application/octet-stream"),
        ("audio/wav " + "x" * 300, "application/octet-stream"),
        ("a/\ud800", "application/octet-stream"),
    ],
)
def test_only_a_media_type_is_sent_as_one(given_type: str, sent: str) -> None:
    assert media_type(given_type) == sent


@given(st.text(max_size=300))
def test_whatever_the_record_says_the_type_is_one_ascii_line(text: str) -> None:
    sent = media_type(text)
    assert sent.isascii()
    assert not {"\r", "\n", "\0"} & set(sent)
    assert "/" in essence(text)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_name_of_the_corpus_stays_within_its_quotes(name: str) -> None:
    sent = quoted(clean_filename(name, "audio/wav"))
    assert sent
    assert not set(b'"\r\n\0') & set(sent)
    assert b"/" not in sent
    assert len(clean_filename(name, "audio/wav").encode()) <= 255
    if name.lower().endswith(".wav"):
        assert sent.endswith(b".wav")


@given(st.text(alphabet=st.characters(), max_size=400))  # lone surrogates too
def test_any_name_becomes_one_quoted_string_of_utf8(name: str) -> None:
    sent = quoted(clean_filename(name, "audio/wav"))
    assert sent.decode()
    assert not set(b'"\r\n\0') & set(sent)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("a%20b.wav", "a%20b.wav"),
        ('a"; name="model.wav', "a%22; name=%22model.wav"),
        ("a\r\nX-Injected: 1.wav", "aX-Injected: 1.wav"),
        ("..\\..\\x.wav", "x.wav"),
        ("/etc/passwd", "passwd"),
        ("", "file.wav"),
        ("..", "file.wav"),
        ("a\ud800.wav", "a?.wav"),
        ("x" * 300 + ".tar.gz", "x" * 252 + ".gz"),
        ("." + "y" * 300, "." + "y" * 254),
    ],
)
def test_a_name_keeps_what_is_a_name_and_its_extension(name: str, sent: str) -> None:
    assert quoted(clean_filename(name, "audio/wav")).decode() == sent


def test_a_nameless_file_of_an_unknown_type_is_just_a_file() -> None:
    assert clean_filename("", "application/x-unheard-of") == "file"


def test_only_a_trace_context_is_passed_on() -> None:
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert traceparent(good) == good
    assert traceparent(good + "\r\nX: 1") == ""


def test_an_excerpt_is_one_line_of_printable_characters() -> None:
    assert printable(b"  CUDA\r\n\tout of\x1b[31m memory \xff\x00 ", 100) == "CUDA out of [31m memory \ufffd"
    assert len(printable(b"x" * 2000, 500)) == 500
