"""Media types: grammar, signatures, and whether declaration and content agree."""

from __future__ import annotations

import pytest

from gateway import media

WAV = b"RIFF\x24\0\0\0WAVEfmt "
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
MP3_FRAME = b"\xff\xfb\x90\x64" + b"\0" * 20
AUDIO = ["audio/*"]


@pytest.mark.parametrize(
    ("text", "essence", "kept"),
    [
        ("audio/wav", "audio/wav", "audio/wav"),
        ("Audio/WAV; rate=8000", "audio/wav", "audio/wav; rate=8000"),
        ('text/plain; charset="utf-8"', "text/plain", 'text/plain; charset="utf-8"'),
        ("audio/wav;", "audio/wav", "audio/wav"),
        ("application/vnd.api+json", "application/vnd.api+json", "application/vnd.api+json"),
    ],
)
def test_media_type_is_parsed_and_kept(text: str, essence: str, kept: str) -> None:
    parsed = media.parse(text)

    assert (parsed.essence, parsed.text) == (essence, kept)


@pytest.mark.parametrize(
    "text",
    ["", "audio", "audio/", "/wav", "audio/wav\r\nX: 1", "audio/wav%0d%0aX: 1", "audio/w av", "audio/wav; a=\r\n",
     "audio/wav; a=\"\r\n\"", "audio/wav x", "a/b; c", "\u00e4/b", "audio/" + "x" * 600],
)  # fmt: skip
def test_what_is_no_token_slash_token_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="media type"):
        _ = media.parse(text)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (WAV, media.WAV), (PNG, media.PNG), (MP3_FRAME, media.MP3), (b"ID3\x04\0", media.MP3),
        (b"\xff\xf1\x50\x80", media.AAC), (b"fLaC\0", media.FLAC), (b"OggS\0\x02", media.OGG),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", media.JPEG), (b"%PDF-1.7\n", media.PDF), (b"\x1a\x45\xdf\xa3\x9f", media.WEBM),
        (b"\0\0\0\x20ftypisom", media.MP4), (b"\0\0\0\x20ftypM4A ", media.M4A), (b"\0\0\0\x1cftypavif", media.AVIF),
        (b"RIFF\0\0\0\0WEBPVP8 ", media.WEBP), (b"GIF89a", media.GIF), (b"FORM\0\0\0\0AIFF", media.AIFF),
        (b"\x7fELF\x02", media.PROGRAM), (b"MZ\x90\0\x03", media.PROGRAM), (b"PK\x03\x04", media.ZIP),
        (b"\xef\xbb\xbf <!DOCTYPE html><p>", media.HTML),
        (b"", None), (b"\xff", None), (b"\xff\xff\xff\xff", None), (b"hello", None), (b"RIFF\0\0\0\0XXXX", None),
    ],
)  # fmt: skip
def test_signature_is_known(head: bytes, kind: media.Kind | None) -> None:
    assert media.sniff(head) == kind


@pytest.mark.parametrize(
    ("declared", "name", "head", "accepted", "stored"),
    [
        ("audio/wav", "a.wav", WAV, AUDIO, "audio/wav"),
        ("audio/x-wav", "a", WAV, AUDIO, "audio/x-wav"),
        ("application/octet-stream", "a", WAV, AUDIO, "audio/wav"),
        (None, "a", WAV, ["audio/x-wav"], "audio/x-wav"),
        (None, "a.mp3", b"??", AUDIO, "audio/mpeg"),
        ("audio/webm", "a.webm", b"\x1a\x45\xdf\xa3", AUDIO, "audio/webm"),
        ("audio/mp4", "a.m4a", b"\0\0\0\x20ftypisom", AUDIO, "audio/mp4"),
        ("audio/wav", "a.wav", b"some codec that the table does not know", AUDIO, "audio/wav"),
        ("text/markdown", "a.md", b"<html>", ["text/*"], "text/markdown"),
        ("application/epub+zip", "a.epub", b"PK\x03\x04", ["application/epub+zip"], "application/epub+zip"),
        (None, "a", b"??", ["*/*"], "application/octet-stream"),
        ("image/png", "a.png", WAV, [], "image/png"),
        (None, "a.txt", b"hello", [], "text/plain"),
        (None, "", b"hello", [], "application/octet-stream"),
    ],
)
def test_acceptable_file_is_stored_with_its_type(
    declared: str | None, name: str, head: bytes, accepted: list[str], stored: str
) -> None:
    assert media.effective_type(media.parse(declared) if declared else None, name, head, accepted) == stored


@pytest.mark.parametrize(
    ("declared", "name", "head"),
    [
        ("image/png", "a.png", PNG),
        ("audio/wav", "a.wav", PNG),
        ("audio/wav", "a.wav", b"%PDF-1.4"),
        ("audio/wav", "a.wav", b"\x7fELF"),
        ("audio/wav", "a.wav", b"<html>"),
        ("audio/mpeg", "a.mp3", WAV),
        ("application/octet-stream", "a", PNG),
        (None, "a.wav", PNG),
        (None, "a", b"??"),
        ("text/plain", "a.wav", WAV),
    ],
)
def test_file_that_the_model_does_not_take_is_refused(declared: str | None, name: str, head: bytes) -> None:
    with pytest.raises(media.Mismatch, match="file"):
        _ = media.effective_type(media.parse(declared) if declared else None, name, head, AUDIO)
