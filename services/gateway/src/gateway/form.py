"""multipart/form-data as a push parser: bytes in, fields and pieces of the file out. No I/O and no waiting here.

Stricter than the library below it, because what leaves here is stored and forwarded:

* exactly one part named ``file`` (with or without a filename); every other part is a text field of UTF-8;
* a form without its closing delimiter is cut off, however complete it looks;
* nested multiparts (RFC 7578 §4.3), transfer encodings, line feeds in headers and charsets other than UTF-8 are
  refused;
* everything but the file's bytes is bounded: fields, their names and sizes, headers, and what lies before, between
  and behind the parts.
"""

from __future__ import annotations

import logging
import re
from typing import Final, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from gateway import filenames, media
from gateway.problems import Refusal

MOST_FIELDS: Final = 1000
LONGEST_NAME: Final = 200
FIELD_BYTES: Final = 1_048_576
FIELDS_BYTES: Final = 2_097_152
FRAMING_BYTES: Final = 1_048_576
HEADER_BYTES: Final = 8_192
MOST_HEADERS: Final = 16
LONGEST_BOUNDARY: Final = 70  # RFC 2046 §5.1.1
FILE: Final = "file"
BOUNDARY_RULE: Final = (
    f"multipart/form-data needs a boundary of 1 to {LONGEST_BOUNDARY} printable characters, the last not a space"
)

_BOUNDARY: Final = re.compile(r"[\x20-\x7e]*[\x21-\x7e]\Z")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# It warns about each malformed form; a client's mistake is answered, not logged twice.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class FilePart(NamedTuple):
    """What the headers of the file's part say."""

    filename: str
    content_type: media.MediaType | None


def boundary_of(content_type: media.MediaType) -> bytes:
    """The boundary that a request's Content-Type gives.

    Raises:
        Refusal: there is none, or it is none.
    """
    boundary = content_type.parameters.get("boundary", "")
    if len(boundary) > LONGEST_BOUNDARY or not _BOUNDARY.match(boundary):
        raise _malformed(f"Content-Type: {BOUNDARY_RULE}")
    return boundary.encode()


class FormReader:
    """Feed it the body; read ``fields`` and ``file``, and take the file's bytes with ``take``."""

    def __init__(self, boundary: bytes) -> None:
        self.fields: list[tuple[str, str]] = []
        self.file: FilePart | None = None
        self.ended = False
        self._pieces: list[bytes] = []
        self._received = 0
        self._content = 0
        self._field_bytes = 0
        self._headers: dict[str, bytes] = {}
        self._header_name = b""
        self._header_value = b""
        self._name = ""
        self._text: bytearray | None = None  # of the field being read; None while the file is
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
            max_header_count=MOST_HEADERS,
            max_header_size=HEADER_BYTES,
        )

    def feed(self, data: bytes) -> None:
        """The next bytes of the body.

        Raises:
            Refusal: 400 or 413, naming the rule.
        """
        self._received += len(data)
        try:
            _ = self._parser.write(data)
        except FormParserError as error:
            raise _malformed(f"not a well-formed multipart body: {error}") from error
        # Counted behind the parser, which has just said how much of it was content.
        if self._received - self._content > FRAMING_BYTES:
            raise Refusal(
                413, "form_too_large", f"more than {FRAMING_BYTES} bytes of headers, boundaries and padding in the form"
            )

    def close(self) -> None:
        """The body has ended.

        Raises:
            Refusal: the closing delimiter or the file is missing.
        """
        if not self.ended:
            raise _malformed("the form is cut off: its closing delimiter is missing")
        if self.file is None:
            raise Refusal(400, "file_missing", f"exactly one part named {FILE!r} is needed; there was none")

    def take(self) -> list[bytes]:
        """The file's bytes since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    # -- the parser's callbacks ---------------------------------------------------------------------------------

    def _on_part_begin(self) -> None:
        self._headers = {}

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        name = self._header_name.decode("latin-1").lower()
        if name in self._headers:
            raise _malformed(f"a part has two {name} headers")
        if b"\n" in self._header_value:
            raise _malformed(f"a part's {name} header holds a line feed")
        self._headers[name] = self._header_value
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        try:
            kind, parameters = filenames.parse_disposition(self._headers.get("content-disposition", b""))
            if kind != "form-data" or "name" not in parameters:
                raise ValueError('form-data; name="…" is needed')  # noqa: TRY301  one text for both ways
        except ValueError as error:
            raise _malformed(f"a part's Content-Disposition: {error}") from error
        self._name = _field_name(parameters["name"])
        declared = self._content_type()
        encoding = self._headers.get("content-transfer-encoding", b"binary").strip().lower()
        if encoding not in {b"binary", b"8bit", b"7bit"}:
            raise _malformed(f"{self._name}: Content-Transfer-Encoding is not supported; send the bytes as they are")
        if self._name == FILE:
            self._begin_file(parameters, declared)
            return
        if "filename" in parameters or "filename*" in parameters:
            raise Refusal(
                400, "unexpected_file", f"{self._name}: only the part named {FILE!r} may be a file; send one file a job"
            )
        if declared and declared.parameters.get("charset", "utf-8").lower() not in {"utf-8", "utf8", "us-ascii"}:
            raise _malformed(f"{self._name}: text fields are UTF-8")
        if len(self.fields) >= MOST_FIELDS:
            raise Refusal(400, "too_many_fields", f"more than {MOST_FIELDS} text fields")
        self._text = bytearray()

    def _content_type(self) -> media.MediaType | None:
        if not self._headers.get("content-type", b"").strip():
            return None
        try:
            declared = media.parse(self._headers["content-type"].decode("latin-1"))
        except ValueError as error:
            raise _malformed(f"{self._name}: Content-Type: {error}") from error
        if declared.essence.startswith("multipart/"):
            raise _malformed(f"{self._name}: nested multiparts are not supported (RFC 7578 §4.3)")
        return declared

    def _begin_file(self, parameters: dict[str, bytes], declared: media.MediaType | None) -> None:
        if self.file is not None:
            raise Refusal(400, "two_files", f"exactly one part named {FILE!r} is allowed; send one file a job")
        try:
            filename = filenames.from_disposition(parameters)
        except ValueError as error:
            raise _malformed(f"{FILE}: {error}") from error
        self.file = FilePart(filename or "", declared)
        self._text = None

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._content += end - start
        if self._text is None:
            self._pieces.append(data[start:end])
            return
        self._text += data[start:end]
        self._field_bytes += end - start
        if len(self._text) > FIELD_BYTES:
            raise Refusal(413, "field_too_large", f"{self._name}: a text field may have {FIELD_BYTES} bytes")
        if self._field_bytes > FIELDS_BYTES:
            raise Refusal(413, "field_too_large", f"all text fields together may have {FIELDS_BYTES} bytes")

    def _on_part_end(self) -> None:
        if self._text is None:
            return
        try:
            self.fields.append((self._name, self._text.decode()))
        except UnicodeDecodeError as error:
            raise _malformed(f"{self._name}: text fields are UTF-8") from error

    def _on_end(self) -> None:
        self.ended = True


def _field_name(raw: bytes) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise _malformed("a field's name is not UTF-8") from error
    if not 0 < len(name) <= LONGEST_NAME or _CONTROL.search(name):
        raise _malformed(f"a field's name has 1 to {LONGEST_NAME} characters and no control characters")
    return name


def _malformed(detail: str) -> Refusal:
    return Refusal(400, "malformed_form", detail)
