"""File names are data: what comes in is cleaned, never obeyed (families e5, e6, e9)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway import filenames

DATA = Path(__file__).parent / "data"
LONG = "x" * 1100

# What each name of the corpus is stored as; a name that is not here is stored as it came.
EXPECTED = {
    "a\r\nX-Injected: 1.wav": "aX-Injected: 1.wav",
    "..\\..\\x.wav": "x.wav",
    "/etc/passwd": "passwd",
    "a\u0000.wav": "a.wav",
    "a.wav ": "a.wav",
    "a\tb.wav": "ab.wav",
    "a\u2028b.wav": "ab.wav",
    "=cmd|' /C calc'!A0.wav": "C calc'!A0.wav",
}
NAMES = [entry["name"] for entry in json.loads((DATA / "filenames.json").read_text("utf-8"))]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_name_of_the_corpus_becomes_what_is_written_down(name: str) -> None:
    cleaned = filenames.clean(name)

    if len(name.encode()) > filenames.LONGEST_BYTES:
        assert len(cleaned.encode()) <= filenames.LONGEST_BYTES
        assert cleaned.rpartition(".")[1:] == name.rpartition(".")[1:]
    else:
        assert cleaned == EXPECTED.get(name, name)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_cleaned_name_survives_cleaning_and_never_breaks_a_header(name: str) -> None:
    cleaned = filenames.clean(name)

    assert filenames.clean(cleaned) == cleaned
    header = filenames.attachment(cleaned)
    assert header.isascii()
    assert header.isprintable()
    kind, parameters = filenames.parse_disposition(header.encode())
    assert kind == "attachment"
    if "filename*" in parameters:
        del parameters["filename"]
        assert filenames.from_disposition(parameters) == cleaned
    else:
        assert parameters["filename"].decode() == cleaned


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        (b'form-data; name="file"; filename="safe.wav"; filename*=UTF-8\'\'evil.exe', "safe.wav"),
        (b"form-data; name=file; filename*=UTF-8''%E5%BD%95%E9%9F%B3.wav", "\u5f55\u97f3.wav"),
        (b"form-data; name=file; filename*=iso-8859-1'en'caf%E9.wav", "caf\u00e9.wav"),
        (b'form-data; name="file"; note="x; filename=evil.exe"; filename="safe.wav"', "safe.wav"),
        (b'form-data; name="file"; filename="a\\"b.wav"', 'a"b.wav'),
        (b'form-data; name="file"; filename="C:\\Users\\me\\a.wav"', "a.wav"),
        (b'form-data; name="file"; filename="a%20b%0D.wav"', "a%20b%0D.wav"),
        (b'form-data; name="file"; filename="caf\xe9.wav"', "caf\ufffd.wav"),
        (b'form-data; name="file"; filename=""', ""),
        (b'form-data; name="file"', None),
        (b"form-data; name=file; filename=a.wav;", "a.wav"),
    ],
)
def test_disposition_gives_the_name_by_one_written_rule(disposition: bytes, name: str | None) -> None:
    kind, parameters = filenames.parse_disposition(disposition)

    assert kind == "form-data"
    assert parameters["name"] == b"file"
    assert filenames.from_disposition(parameters) == name


@pytest.mark.parametrize(
    "disposition",
    [
        b"",
        b"=",
        b"form-data; name",
        b"form-data; name=",
        b'form-data; name="a',
        b'form-data; name="a"; name="b"',
        b"a b",
    ],
)
def test_disposition_that_is_none_is_refused(disposition: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        _ = filenames.parse_disposition(disposition)


@pytest.mark.parametrize("extended", [b"x", b"UTF-7''a", b"UTF-8'a", b"''a"])
def test_extended_name_outside_rfc_8187_is_refused(extended: bytes) -> None:
    with pytest.raises(ValueError, match="8187"):
        _ = filenames.from_disposition({"filename*": extended})


@pytest.mark.parametrize("name", [".", "..", "a/..", "\\", "\u202e", ""])
def test_nothing_usable_becomes_no_name(name: str) -> None:
    assert filenames.clean(name) == ""


def test_bidirectional_override_cannot_disguise_an_extension() -> None:
    assert filenames.clean("song\u202evaw.exe") == "songvaw.exe"


def test_long_name_without_a_short_extension_is_cut_at_a_character() -> None:
    assert filenames.clean("\u00e9" * 200) == "\u00e9" * 127
    assert filenames.clean("a." + "e" * 300) == "a." + "e" * 253
