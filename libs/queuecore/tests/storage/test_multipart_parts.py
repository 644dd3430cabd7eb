from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from queuecore.storage import multipart
from queuecore.storage.multipart import FIRST_PART_BYTES, MAX_PARTS, part_bytes, split

pytestmark = pytest.mark.anyio

MIN_PART_BYTES = 5 << 20
LARGEST_PART_BYTES = 5 << 30
LARGEST_OBJECT_BYTES = 5 << 40


async def pieces(content: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


async def parts_of(content: Sequence[bytes]) -> list[bytes]:
    return [part async for part in split(pieces(content))]


def test_ten_thousand_parts_hold_the_largest_object_that_s3_takes() -> None:
    sizes = [part_bytes(number) for number in range(1, MAX_PARTS + 1)]
    assert sum(sizes) >= LARGEST_OBJECT_BYTES
    assert min(sizes) >= MIN_PART_BYTES
    assert max(sizes) <= LARGEST_PART_BYTES
    assert sizes == sorted(sizes)


def test_a_gibibyte_is_sent_in_parts_of_eight_mebibytes() -> None:
    assert {part_bytes(number) for number in range(1, 129)} == {FIRST_PART_BYTES}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(number: int) -> int:
        return 4 if number <= 2 else 8

    monkeypatch.setattr(multipart, "part_bytes", small)


@pytest.mark.usefixtures("small_parts")
async def test_parts_grow_and_only_the_last_is_short() -> None:
    assert [len(part) for part in await parts_of([b"x" * 30])] == [4, 4, 8, 8, 6]
    assert [len(part) for part in await parts_of([b"x"] * 30)] == [4, 4, 8, 8, 6]
    assert await parts_of([b"abc", b"defgh", b"ij"]) == [b"abcd", b"efgh", b"ij"]


@pytest.mark.usefixtures("small_parts")
async def test_a_stream_that_ends_with_a_part_has_no_empty_part_behind_it() -> None:
    assert await parts_of([b"abcd"]) == [b"abcd"]
    assert await parts_of([b"abcd", b"", b"efgh"]) == [b"abcd", b"efgh"]


@pytest.mark.usefixtures("small_parts")
async def test_an_empty_stream_is_one_empty_part() -> None:
    assert await parts_of([]) == [b""]
    assert await parts_of([b"", b""]) == [b""]
