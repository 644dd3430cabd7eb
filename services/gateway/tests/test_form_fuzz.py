"""Whatever is fed to the form parser, it refuses cleanly or gives back what went in (family e1)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import form
from gateway.problems import Refusal

BOUNDARY = b"RelB0undary7"

PIECES = st.sampled_from(
    [
        b"--RelB0undary7",
        b"--RelB0undary7\r\n",
        b"--RelB0undary7--",
        b"--RelB0undary7--\r\n",
        b"\r\n--RelB0undary",
        b"\r\n",
        b"\r",
        b"\n",
        b"-",
        b"--",
        b'Content-Disposition: form-data; name="file"\r\n\r\n',
        b'Content-Disposition: form-data; name="file"; filename="a"\r\n',
        b"Content-Disposition: form-data; name=a\r\n\r\n",
        b"Content-Disposition: form-data; filename*=UTF-8''%ff; name=file\r\n\r\n",
        b"Content-Type: audio/wav\r\n\r\n",
        b"Content-Type: text/plain; charset=x\r\n",
        b": ",
        b"\0",
        b"\xff\xfe",
        b"data",
        b" ",
        b"\t",
        b"x" * 5000,
        b'"',
        b"\\",
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(PIECES, st.binary(max_size=40)), max_size=40))
def test_any_bytes_in_any_pieces_are_refused_cleanly_or_taken(pieces: list[bytes]) -> None:
    reader = form.FormReader(BOUNDARY)
    try:
        for piece in pieces:
            reader.feed(piece)
            _ = reader.take()
        reader.close()
    except Refusal as error:
        refusal = error
    else:
        refusal = None

    if refusal is None:
        assert reader.file is not None
    else:
        assert refusal.status in {400, 413}
        assert refusal.detail


@settings(max_examples=200, deadline=None)
@given(
    content=st.binary(max_size=3000).filter(lambda data: b"\r\n--" + BOUNDARY not in b"\r\n" + data),
    fields=st.lists(st.tuples(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text(max_size=50)), max_size=5),
    cuts=st.lists(st.integers(1, 200), min_size=1, max_size=20),
)
def test_well_formed_form_gives_back_every_byte_however_it_is_cut(
    content: bytes, fields: list[tuple[str, str]], cuts: list[int]
) -> None:
    fields = [(name, value) for name, value in fields if name != "file" and BOUNDARY not in value.encode()]
    body = b"".join(
        b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (BOUNDARY, name.encode(), value.encode())
        for name, value in fields
    )
    body += b'--%b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n%b\r\n--%b--\r\n' % (
        BOUNDARY, content, BOUNDARY,
    )  # fmt: skip
    reader = form.FormReader(BOUNDARY)
    received = b""
    position = 0
    while position < len(body):
        for cut in cuts:
            reader.feed(body[position : position + cut])
            received += b"".join(reader.take())
            position += cut
    reader.close()

    assert received == content
    assert reader.fields == fields


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_disposition_and_media_type_is_parsed_or_refused(value: bytes) -> None:
    from gateway import filenames, media

    for parse in (lambda: filenames.parse_disposition(value), lambda: media.parse(value.decode("latin-1"))):
        try:
            _ = parse()
        except ValueError as error:
            assert str(error)  # noqa: PT017  the only exception allowed
