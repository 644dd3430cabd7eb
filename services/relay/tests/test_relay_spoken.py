"""What of a streaming answer is heard: whole lines, the newest, bounded whatever the model writes."""

from __future__ import annotations

import asyncio

import pytest

from queuecore.broker import Progress
from queuecore.errors import BrokerUnavailable
from queuecore.testing.clock import eventually
from queuecore.testing.requirement import requirement
from relay.spoken import LONGEST_BYTES, Spoken, told

pytestmark = requirement("wait:events:model-is-heard")
NDJSON, EVENTS = "application/x-ndjson", "text/event-stream; charset=utf-8"


def said(content_type: str, content: bytes, pieces: int) -> list[str]:
    """Every line that is heard when the answer comes in pieces of this size."""
    spoken = Spoken(content_type)
    found: list[str] = []
    for at in range(0, len(content), pieces):
        before = spoken.newest
        spoken.feed(content[at : at + pieces])
        if spoken.newest is not None and spoken.newest != before:
            found.append(spoken.newest.text)
    return found


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_lines_of_ndjson_are_heard_as_they_were_written(pieces: int) -> None:
    assert said(NDJSON, b'{"n": 1.50}\n\n  \r\n{"u": "\xc3\xbc\xff"}\r\nunfinished', pieces) == [
        '{"n": 1.50}', '{"u": "ü\ufffd"}',
    ]  # fmt: skip


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_data_of_events_is_heard_and_the_end_of_openais_streams_is_none(pieces: int) -> None:
    stream = (
        b": hello\n\nevent: delta\ndata: one\n\ndata:two\ndata: lines\r\n\r\nid: 7\n\ndata: [DONE]\n\ndata: unfinished"
    )
    assert said(EVENTS, stream, pieces) == ["one", "two\nlines"]


def test_the_newest_of_many_lines_counts_them_all() -> None:
    spoken = Spoken(NDJSON)
    spoken.feed(b"".join(b"%d\n" % number for number in range(1, 1001)))
    assert spoken.newest == Progress(1000, "1000")


@pytest.mark.parametrize("content_type", [NDJSON, EVENTS])
def test_a_line_without_end_is_passed_over_in_bounded_memory(content_type: str) -> None:
    spoken = Spoken(content_type)
    for _ in range(100):
        spoken.feed(b"data: " + b"x" * LONGEST_BYTES)
        assert len(spoken._part) <= LONGEST_BYTES
    assert spoken.newest is None
    spoken.feed(b"\n\ndata: short\n\n")
    assert spoken.newest is not None
    assert spoken.newest.text.endswith("short")


@pytest.mark.parametrize("line", [b"data: 0123456789\n", b"data:\n", b"data: \r\n"])
def test_many_data_lines_of_one_event_are_bounded_too(line: bytes) -> None:
    spoken = Spoken(EVENTS)
    for _ in range(10_000):
        spoken.feed(line)
    assert len(spoken._data) + sum(map(len, spoken._data)) <= LONGEST_BYTES
    spoken.feed(b"\ndata: next\n\n")
    assert spoken.newest is not None
    assert spoken.newest.text == "next", "the bound is of one event, not of the stream"


def test_an_event_that_is_too_long_is_not_heard_in_part() -> None:
    long = b"data: a\ndata: " + b"x" * (LONGEST_BYTES - 20) + b"\ndata: " + b"y" * 100 + b"\n\n"
    assert said(EVENTS, long + b"data: short\n\n", 97) == ["short"]


@pytest.mark.parametrize("content_type", ["application/json", "", "text/plain", "application/x-ndjsonx"])
def test_other_answers_are_not_listened_to(content_type: str) -> None:
    assert said(content_type, b"one\ntwo\n", 3) == []


@pytest.mark.anyio
async def test_the_newest_is_told_and_what_fails_is_tried_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.spoken.PAUSE_SECONDS", 0.01)
    spoken, reported = Spoken(NDJSON), list[Progress]()

    async def report(progress: Progress) -> None:
        reported.append(progress)
        if len(reported) == 1:
            raise BrokerUnavailable("Redis is away")

    async with told(spoken, report):
        spoken.feed(b"one\n")
        assert await eventually(lambda: len(reported) == 1)
        spoken.feed(b"two\nthree\n")
        assert await eventually(lambda: len(reported) == 2)

    assert [one.text for one in reported] == ["one", "three"]
    spoken.feed(b"four\n")
    await asyncio.sleep(0)
    assert len(reported) == 2, "nobody is told after the answer"
