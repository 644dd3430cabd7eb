"""Each transport has its own words for priority, and a submission may use true and false everywhere (design §10.7)."""

from __future__ import annotations

import pytest

from gateway.problems import Refusal
from gateway.requests import Options
from gateway.webhooks.guard import Allow
from queuecore.config import parse_config

CONFIG = parse_config(
    """
models:
  plain: {service_type: list, operations: {x: /x}}
  sorted: {service_type: sortedset, operations: {x: /x}, transport: sortedset, order: priority}
  lanes: {service_type: stream, operations: {x: /x}, transport: stream}
"""
)


def resolved(service_type: str, text: str | None, *, field: bool = True, header: bool = False) -> str:
    options = Options(CONFIG, service_type, priority_field=field, allow=Allow())
    if text is not None:
        options.add_text("priority", text)
    return options.resolve(priority_header=header).priority


@pytest.mark.parametrize(
    ("service_type", "words"),
    [
        ("list", {None: "false", "false": "false", "true": "true"}),
        ("sortedset", {None: "normal", "false": "normal", "true": "high", "high": "high", "critical": "critical"}),
        ("stream", {None: "normal", "normal": "normal", "false": "normal", "true": "high", "high": "high"}),
    ],
)
def test_a_priority_is_kept_in_the_words_of_the_transport(service_type: str, words: dict[str | None, str]) -> None:
    assert {text: resolved(service_type, text) for text in words} == words
    assert resolved(service_type, None, header=True) in {"true", "high"}


@pytest.mark.parametrize(
    ("service_type", "text", "message"),
    [
        ("list", "high", "priority: false or true"),
        ("sortedset", "urgent", r"priority: normal or high or critical \(true is high\)"),
        ("stream", "critical", r"priority: normal or high \(true is high\)"),
    ],
)
def test_another_word_is_refused_with_those_that_are_known(service_type: str, text: str, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        _ = resolved(service_type, text)


def test_only_a_lists_priority_needs_the_operators_header() -> None:
    with pytest.raises(Refusal, match="GATEWAY_PRIORITY_HEADER is unset"):
        _ = resolved("list", "true", field=False)
    assert resolved("sortedset", "critical", field=False) == "critical"
    assert resolved("stream", "high", field=False) == "high"
