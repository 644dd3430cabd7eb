"""Token use is read from the end of an answer, in bounded memory."""

from __future__ import annotations

import json

import pytest

from relay.usage import TAIL_BYTES, Usage


def used(answer: bytes, content_type: str = "application/json", *, step: int = 7) -> int | None:
    usage = Usage(content_type)
    for at in range(0, len(answer), step):
        usage.feed(answer[at : at + step])
    return usage.tokens()


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}, 7),
        ({"usage": {"input_tokens": 3, "output_tokens": 5}, "content": []}, 8),
        ({"usage": {"prompt_tokens": 2, "completion_tokens": 0}}, 2),
        ({"usage": {"total_tokens": "7"}}, None),
        ({"usage": {"total_tokens": -1}}, None),
        ({"usage": {"total_tokens": True}}, None),
        ({"usage": None}, None),
        ({"text": 'he said "usage": {"total_tokens": 99}', "usage": {"total_tokens": 5}}, 5),
        ({"usage": {"total_tokens": 5}, "text": 'he said "usage": {"total_tokens": 99}'}, 5),
        ([1, 2], None),
    ],
)
def test_the_total_is_found_and_nothing_else_is_taken_for_it(answer: object, tokens: int | None) -> None:
    assert used(json.dumps(answer).encode()) == tokens
    assert used(json.dumps(answer, indent=2).encode(), "application/vnd.acme+json; charset=utf-8") == tokens


def test_a_streamed_answer_says_it_in_its_last_event() -> None:
    events = b'data: {"usage": null}\n\ndata: {"choices": [], "usage": {"total_tokens": 41}}\n\ndata: [DONE]\n\n'
    assert used(events, "text/event-stream") == 41


def test_only_the_end_of_a_long_answer_is_kept() -> None:
    usage = Usage("application/json")
    for _ in range(100):
        usage.feed(b"x" * 1_000_000)
    assert len(usage._tail) == TAIL_BYTES
    usage.feed(b'", "usage": {"total_tokens": 12}}')
    assert usage.tokens() == 12


def test_other_answers_are_not_looked_at() -> None:
    assert used(b'{"usage": {"total_tokens": 1}}', "audio/wav") is None
    assert used(b'{"usage": {"total_tokens": 1', "application/json") is None
