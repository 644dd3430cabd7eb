"""Everything that can be done to an encrypted object without its key: refused, and never delivered as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuecore.crypto.header import MAGIC, Header
from queuecore.crypto.keyring import EncryptionKey, KeyRing
from queuecore.crypto.stream import (
    FIRST_BYTES,
    LATER_BYTES,
    MAX_HEAD_BYTES,
    SEGMENT_BYTES,
    STREAM_HEADER_BYTES,
    Decryptor,
    Envelope,
    _Cipher,
)
from queuecore.errors import BlobCorrupt, BlobError, KeyUnknown
from queuecore.testing.crypto import chop, encrypt

KEY = EncryptionKey("2026-11", bytes(range(32)))
OLD = EncryptionKey("2026-10", bytes(range(1, 33)))
RING = KeyRing([KEY, OLD])
NAME = "0192f0c1-2b7e-7d30-8000-000000000001/input"
PATTERN = bytes(index * 31 % 251 for index in range(SEGMENT_BYTES)) * 4
CONTENT = PATTERN[: FIRST_BYTES + 2 * LATER_BYTES + 7]
OBJECT = encrypt(KEY, NAME, [CONTENT])
OURS = Header(KEY.key_id).size
HEAD = OURS + STREAM_HEADER_BYTES
BORDERS = [HEAD, *(OURS + index * SEGMENT_BYTES for index in (1, 2, 3)), len(OBJECT)]
SEGMENTS = [OBJECT[start:stop] for start, stop in itertools.pairwise(BORDERS)]
# one with full segments only, so that whole segments can change places
FULL = encrypt(KEY, NAME, [PATTERN[: FIRST_BYTES + 2 * LATER_BYTES]])
FULL_SEGMENTS = [FULL[HEAD : OURS + SEGMENT_BYTES], *chop(FULL[OURS + SEGMENT_BYTES :], SEGMENT_BYTES)]

# one short segment: 512 changed copies of it are quick
FIRST = encrypt(KEY, NAME, [CONTENT[:1_000]])


def flip(content: bytes, position: int, bit: int = 0) -> bytes:
    return content[:position] + bytes((content[position] ^ 1 << bit,)) + content[position + 1 :]


def joined(*segments: bytes, head: bytes = OBJECT[:HEAD]) -> bytes:
    return b"".join([head, *segments])


def sealed_segment(index: int, content: bytes, *, last: bool) -> bytes:
    """A segment made with the object's own key, as only somebody who has it could."""
    salt, prefix = OBJECT[OURS + 1 : HEAD - 7], OBJECT[HEAD - 7 : HEAD]
    return _Cipher(KEY, salt, prefix, NAME).seal(index, memoryview(content), last=last)


def cut_at_every_border() -> Iterator[bytes]:
    yield b""
    yield OBJECT[:OURS]
    for border in BORDERS[:-1]:
        yield OBJECT[:border]
        yield OBJECT[: border + 1]
        yield OBJECT[: border - 1]
    yield OBJECT[: len(OBJECT) // 2]


def marks_moved() -> Iterator[bytes]:
    plain = list(chop(CONTENT[FIRST_BYTES:], LATER_BYTES))
    yield joined(SEGMENTS[0], sealed_segment(1, plain[0], last=True), *SEGMENTS[2:])
    yield joined(*SEGMENTS[:3], sealed_segment(3, plain[2], last=False))


def segment_of_another_object() -> Iterator[bytes]:
    other = encrypt(KEY, NAME, [CONTENT])
    for index in range(4):
        theirs = other[BORDERS[index] : BORDERS[index + 1]]
        yield joined(*SEGMENTS[:index], theirs, *SEGMENTS[index + 1 :])


def a_bit_in_each_tag() -> Iterator[bytes]:
    for border in BORDERS[1:]:
        for position in (border - 1, border - 16):
            yield flip(OBJECT, position, bit=position % 8)


def lengths_forged() -> Iterator[bytes]:
    for value in (0, 6, 15, 64, 65, 255):
        yield OBJECT[:5] + bytes((value,)) + OBJECT[6:]
    for value in (0, 15, 39, 41, 255):
        yield OBJECT[:OURS] + bytes((value,)) + OBJECT[OURS + 1 :]


MUTATIONS: dict[str, Callable[[], Iterator[bytes]]] = {
    "cut at or beside a border, to the bare header, to nothing, to one half": cut_at_every_border,
    "cut by one byte at the end": lambda: iter([OBJECT[:-1]]),
    "first segment dropped": lambda: iter([joined(*SEGMENTS[1:])]),
    "middle segment dropped": lambda: iter([joined(SEGMENTS[0], *SEGMENTS[2:])]),
    "last segment dropped": lambda: iter([joined(*SEGMENTS[:-1]), FULL[:-SEGMENT_BYTES]]),
    "two segments swapped": lambda: iter([
        joined(SEGMENTS[0], SEGMENTS[2], SEGMENTS[1], SEGMENTS[3]),
        joined(FULL_SEGMENTS[0], FULL_SEGMENTS[2], FULL_SEGMENTS[1], head=FULL[:HEAD]),
    ]),
    "a segment repeated": lambda: iter([joined(*SEGMENTS[:2], SEGMENTS[1], *SEGMENTS[2:])]),
    "a byte appended": lambda: iter([OBJECT + b"\0", FULL + b"\0"]),
    "a copy of the last segment appended": lambda: iter([OBJECT + SEGMENTS[-1], FULL + FULL_SEGMENTS[-1]]),
    "an empty segment appended, made with the same key": lambda: iter([
        OBJECT + sealed_segment(4, b"", last=True),
        # the form that Tink's format would allow and ours does not: an empty last one behind full ones
        joined(*SEGMENTS[:3], sealed_segment(3, b"", last=True)),
    ]),
    "a segment of another object under the same key": segment_of_another_object,
    "each bit of the first 64 bytes": lambda: (flip(FIRST, at, bit) for at in range(64) for bit in range(8)),
    "a bit in each tag": a_bit_in_each_tag,
    "a middle segment marked last, the last one marked middle": marks_moved,
    "lengths forged": lengths_forged,
    "version 0 and 255": lambda: (OBJECT[:4] + bytes((version,)) + OBJECT[5:] for version in (0, 2, 255)),
    "plaintext in place": lambda: iter([CONTENT, b"RIFF" + CONTENT, b"R", MAGIC, MAGIC + CONTENT]),
    "the object of another job": lambda: iter([encrypt(KEY, "another/input", [CONTENT])]),
    "the object of another name of the same job": lambda: iter([encrypt(KEY, NAME[:-5] + "1-x/result", [CONTENT])]),
    "the right key under the id of another": lambda: iter([
        encrypt(EncryptionKey(OLD.key_id, KEY.secret), NAME, [CONTENT]),
        Header(OLD.key_id).encode() + OBJECT[OURS:],
    ]),
    "the key id unknown": lambda: iter([encrypt(EncryptionKey("gone", KEY.secret), NAME, [CONTENT])]),
}  # fmt: skip


def read(content: bytes, piece_bytes: int) -> tuple[bytes, BlobError | None]:
    """What was delivered, and the refusal."""
    delivered = b""
    try:
        envelope = Envelope(RING, NAME, content[:MAX_HEAD_BYTES])
        decryptor = Decryptor(envelope)
        for piece in chop(content[envelope.size :], piece_bytes):
            delivered += b"".join(decryptor.update(piece))
        delivered += b"".join(decryptor.finalize())
    except (BlobCorrupt, KeyUnknown) as error:
        return delivered, error
    return delivered, None


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("piece_bytes", [100_003, SEGMENT_BYTES, 1 << 30])
def test_a_changed_object_is_refused_and_nothing_unverified_is_delivered(mutation: str, piece_bytes: int) -> None:
    number = 0
    for number, content in enumerate(MUTATIONS[mutation](), start=1):
        delivered, refusal = read(content, piece_bytes)

        assert refusal is not None, f"variant {number} was accepted"
        assert CONTENT.startswith(delivered), f"variant {number} delivered bytes that nobody wrote"
        assert delivered != CONTENT
    assert number


def test_the_unchanged_object_is_accepted_so_the_refusals_mean_something() -> None:
    assert read(OBJECT, SEGMENT_BYTES) == (CONTENT, None)
    assert read(joined(*SEGMENTS[:3], sealed_segment(3, CONTENT[-7:], last=True)), SEGMENT_BYTES) == (CONTENT, None)


def test_the_key_id_is_authenticated_and_not_only_used_to_find_the_key() -> None:
    twins = KeyRing([KEY, EncryptionKey("twin", KEY.secret)])
    renamed = Header("twin").encode() + OBJECT[OURS:]

    envelope = Envelope(twins, NAME, renamed)
    decryptor = Decryptor(envelope)
    with pytest.raises(BlobCorrupt, match="segment 0"):
        _ = decryptor.update(renamed[envelope.size :])


def test_a_header_with_an_unknown_id_is_the_retryable_error_and_the_rest_is_corrupt() -> None:
    for mutation, variants in MUTATIONS.items():
        refusals = {type(read(content, SEGMENT_BYTES)[1]) for content in variants()}
        if mutation == "the key id unknown":
            assert refusals == {KeyUnknown}
        elif mutation not in {"each bit of the first 64 bytes", "lengths forged"}:
            assert refusals == {BlobCorrupt}, mutation


SMALL = encrypt(KEY, NAME, [b"a small object"])

EDITS = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "delete", "cut"]), st.integers(0, len(SMALL) + 3), st.binary(max_size=80)
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(edits=EDITS, piece_bytes=st.integers(1, 200))
def test_any_edit_of_a_small_object_is_refused_cleanly(edits: list[tuple[str, int, bytes]], piece_bytes: int) -> None:
    content = SMALL
    for kind, at, what in edits:
        match kind:
            case "replace":
                content = content[:at] + what + content[at + len(what) :]
            case "insert":
                content = content[:at] + what + content[at:]
            case "delete":
                content = content[:at] + content[at + len(what) :]
            case _:
                content = content[:at]
    delivered, refusal = read(content, piece_bytes)

    assert (refusal is None) == (content == SMALL)
    assert refusal is None or delivered == b""


@settings(deadline=None)
@given(tail=st.binary(max_size=300), id_length=st.integers(0, 255), piece_bytes=st.integers(1, 300))
def test_the_decryptor_refuses_any_bytes_cleanly(tail: bytes, id_length: int, piece_bytes: int) -> None:
    for content in (
        tail,
        MAGIC + tail,
        MAGIC + bytes((1, id_length)) + tail,
        Header(KEY.key_id).encode() + tail,
        Header(KEY.key_id).encode() + bytes((STREAM_HEADER_BYTES,)) + tail,
    ):
        delivered, refusal = read(content, piece_bytes)

        assert delivered == b""
        assert refusal is not None


@settings(deadline=None)
@given(
    position=st.integers(0, len(OBJECT) - 1),
    bit=st.integers(0, 7),
    stop=st.integers(0, len(OBJECT)) | st.sampled_from(BORDERS),
)
def test_a_flipped_bit_or_a_cut_anywhere_in_a_large_object_is_refused(position: int, bit: int, stop: int) -> None:
    damaged = bytearray(OBJECT)
    damaged[position] ^= 1 << bit
    for content in (bytes(damaged), OBJECT[:stop]):
        delivered, refusal = read(content, SEGMENT_BYTES)

        assert (refusal is None) == (content == OBJECT)
        assert CONTENT.startswith(delivered)
