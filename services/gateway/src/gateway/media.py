"""Media types: what a client declares (RFC 9110 §8.3.1), what the first bytes show, and whether the two agree.

The table is small on purpose: it knows the kinds of files that models take, and some that are often sent by mistake.
Content that it does not know proves nothing, so the declaration stands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

OCTETS: Final = "application/octet-stream"
HEAD_BYTES: Final = 1024  # how much of a file the table wants to see

_TOKEN: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105  RFC 9110's word for a name
_QUOTED: Final = r'"(?:[\t \x21\x23-\x5b\x5d-\x7e]|\\[\t \x21-\x7e])*"'
_PARAMETER: Final = re.compile(rf"[ \t]*;[ \t]*(?:({_TOKEN})=({_TOKEN}|{_QUOTED}))?")
_TYPE: Final = re.compile(rf"({_TOKEN})/({_TOKEN})")
_LONGEST: Final = 512


class MediaType(NamedTuple):
    """``essence`` is type/subtype in lower case; ``parameters`` have lower-case names and unquoted values."""

    essence: str
    parameters: dict[str, str]
    text: str

    @property
    def generic(self) -> bool:
        """Whether it says nothing about the content."""
        return self.essence in {OCTETS, "binary/octet-stream", "application/x-download", "application/unknown"}


def parse(text: str) -> MediaType:
    """A Content-Type value.

    Raises:
        ValueError: not ``token/token`` with parameters; nothing else may reach a header that the relay writes.
    """
    text = text.strip(" \t")
    match = _TYPE.match(text) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError("not a media type such as audio/wav")
    position, parameters = match.end(), dict[str, str]()
    while position < len(text):
        found = _PARAMETER.match(text, position)
        if found is None or found.end() == position:
            raise ValueError("not a media type such as audio/wav; charset=utf-8")
        if found[1]:
            value = found[2]
            _ = parameters.setdefault(
                found[1].lower(), re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
            )
        position = found.end()
    return MediaType(match[0].lower(), parameters, match[0].lower() + text[match.end() :].rstrip(" \t;"))


def accepts(ranges: Sequence[str], essence: str) -> bool:
    """Whether one of ``accepted_types`` covers the type; an empty list takes everything."""
    kind = essence.partition("/")[0]
    return not ranges or any(wanted in {"*/*", essence, f"{kind}/*"} for wanted in ranges)


class Kind(NamedTuple):
    """Types that one signature may be declared as; the first is the one we say ourselves.

    ``open_family``: any type of that family may look like this (a docx is a zip file, Markdown may hold HTML).
    """

    types: tuple[str, ...]
    open_family: str = ""


WAV: Final = Kind(("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave"))
MP3: Final = Kind(("audio/mpeg", "audio/mp3", "audio/x-mp3", "audio/x-mpeg", "audio/mpeg3"))
AAC: Final = Kind(("audio/aac", "audio/aacp", "audio/x-aac", "audio/x-hx-aac-adts"))
FLAC: Final = Kind(("audio/flac", "audio/x-flac"))
OGG: Final = Kind(("audio/ogg", "application/ogg", "video/ogg", "audio/opus", "audio/vorbis", "audio/x-vorbis+ogg"))
WEBM: Final = Kind(("video/webm", "audio/webm", "video/x-matroska", "audio/x-matroska"))
MP4: Final = Kind(
    ("video/mp4", "audio/mp4", "audio/x-m4a", "audio/m4a", "video/quicktime", "video/x-m4v", "application/mp4",
     "video/3gpp", "audio/3gpp"),
)  # fmt: skip
M4A: Final = Kind(("audio/mp4", "audio/x-m4a", "audio/m4a", "video/mp4", "application/mp4"))
HEIC: Final = Kind(("image/heic", "image/heif"))
AVIF: Final = Kind(("image/avif", "image/heif"))
AIFF: Final = Kind(("audio/aiff", "audio/x-aiff"))
AMR: Final = Kind(("audio/amr", "audio/amr-wb"))
AVI: Final = Kind(("video/x-msvideo", "video/avi", "video/msvideo", "video/vnd.avi"))
PNG: Final = Kind(("image/png", "image/apng", "image/x-png"))
JPEG: Final = Kind(("image/jpeg", "image/jpg", "image/pjpeg"))
GIF: Final = Kind(("image/gif",))
WEBP: Final = Kind(("image/webp",))
TIFF: Final = Kind(("image/tiff",))
PDF: Final = Kind(("application/pdf", "application/x-pdf"))
ZIP: Final = Kind(("application/zip", "application/x-zip-compressed"), "application/")
GZIP: Final = Kind(("application/gzip", "application/x-gzip"), "application/")
PROGRAM: Final = Kind(("application/x-executable", "application/x-msdownload", "application/x-elf"))
HTML: Final = Kind(("text/html", "application/xhtml+xml"), "text/")

_RIFF: Final = {b"WAVE": WAV, b"AVI ": AVI, b"WEBP": WEBP}
_BRANDS: Final = {
    b"M4A ": M4A, b"M4B ": M4A, b"heic": HEIC, b"heix": HEIC, b"mif1": HEIC, b"msf1": HEIC, b"avif": AVIF,
    b"avis": AVIF,
}  # fmt: skip
_SIGNATURES: Final[tuple[tuple[bytes, Kind], ...]] = (
    (b"fLaC", FLAC), (b"OggS", OGG), (b"\x1a\x45\xdf\xa3", WEBM), (b"\x89PNG\r\n\x1a\n", PNG),
    (b"\xff\xd8\xff", JPEG), (b"GIF87a", GIF), (b"GIF89a", GIF), (b"II*\x00", TIFF), (b"MM\x00*", TIFF),
    (b"%PDF-", PDF), (b"PK\x03\x04", ZIP), (b"\x1f\x8b\x08", GZIP), (b"\x7fELF", PROGRAM), (b"#!AMR", AMR),
)  # fmt: skip
_EXTENSIONS: Final = {
    "wav": WAV, "mp3": MP3, "aac": AAC, "flac": FLAC, "ogg": OGG, "oga": OGG, "opus": OGG, "webm": WEBM, "mp4": MP4,
    "m4a": M4A, "aiff": AIFF, "aif": AIFF, "amr": AMR, "avi": AVI, "png": PNG, "jpg": JPEG, "jpeg": JPEG, "gif": GIF,
    "webp": WEBP, "tif": TIFF, "tiff": TIFF, "pdf": PDF, "zip": ZIP, "gz": GZIP, "html": HTML, "htm": HTML,
    "json": Kind(("application/json",)), "txt": Kind(("text/plain",)), "csv": Kind(("text/csv",)),
    "md": Kind(("text/markdown",)),
}  # fmt: skip
_EXTENSION_OF: Final = {kind.types[0]: ext for ext, kind in reversed(_EXTENSIONS.items())}


def sniff(head: bytes) -> Kind | None:
    """What the first bytes of a file are; None when the table does not know them."""
    if head.startswith((b"RIFF", b"RF64")):
        return _RIFF.get(head[8:12])
    if head.startswith(b"FORM") and head[8:12] in {b"AIFF", b"AIFC"}:
        return AIFF
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], MP4)
    if head.startswith(b"ID3"):
        return MP3
    if len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:  # noqa: PLR2004  an MPEG audio frame
        return _mpeg_audio(head) or _by_signature(head)
    return _by_signature(head)


def _by_signature(head: bytes) -> Kind | None:
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    if head.startswith(b"MZ") and b"\x00" in head[:64]:
        return PROGRAM
    start = head[:HEAD_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return HTML if start.startswith((b"<!doctype html", b"<html")) else None


def _mpeg_audio(head: bytes) -> Kind | None:
    version, layer, rate = head[1] >> 3 & 3, head[1] >> 1 & 3, head[2] >> 4
    if layer == 0:
        return AAC if head[1] & 0xF6 == 0xF0 else None  # noqa: PLR2004  the sync word of ADTS
    return MP3 if version != 1 and rate not in {0, 15} and head[2] >> 2 & 3 != 3 else None  # noqa: PLR2004


def by_name(filename: str) -> Kind | None:
    """What the file's extension says."""
    return _EXTENSIONS.get(filename.rpartition(".")[2].lower()) if "." in filename else None


def extension(essence: str) -> str:
    """``.wav`` for audio/wav; "" for a type that the table does not know."""
    found = _EXTENSION_OF.get(essence)
    return f".{found}" if found else ""


class Mismatch(ValueError):
    """The file is not of a type that the model takes, or not what it is declared as."""


def effective_type(declared: MediaType | None, filename: str, head: bytes, accepted: Sequence[str]) -> str:
    """The type to store: as declared; when that says nothing, as the content shows, then as the name says.

    With ``accepted`` the declaration, where it says something, and the content, where it is known, must both be
    acceptable, and agree.

    Raises:
        Mismatch: in words.
    """
    said = None if declared is None or declared.generic else declared
    shown = sniff(head)
    if said and shown and shown.open_family and said.essence.startswith(shown.open_family):
        shown = None
    named = by_name(filename)
    essence = said.essence if said else shown.types[0] if shown else named.types[0] if named else OCTETS
    if accepted:
        takes = f"this model takes {', '.join(accepted)}"
        if said and not accepts(accepted, said.essence):
            raise Mismatch(f"file: declared as {said.essence}; {takes}")
        if shown and not any(accepts(accepted, name) for name in shown.types):
            raise Mismatch(f"file: its content is {shown.types[0]}; {takes}")
        if said and shown and said.essence not in shown.types:
            raise Mismatch(f"file: declared as {said.essence}, but its content is {shown.types[0]}")
        if not said and shown:
            essence = next(name for name in shown.types if accepts(accepted, name))
        elif not said and not accepts(accepted, essence):
            raise Mismatch(f"file: its type is not known; declare its Content-Type: {takes}")
    return said.text if said else essence
