"""The mock_ fields of a request: forms, JSON and query strings mean the same."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mock_inference.behaviour import _READERS, Behaviour, BehaviourError, parse_behaviour


def test_text_and_json_values_mean_the_same() -> None:
    text = parse_behaviour([("mock_delay_seconds", "1.5"), ("mock_status", "503"), ("mock_hang", "True")])
    json = parse_behaviour([("mock_delay_seconds", 1.5), ("mock_status", 503), ("mock_hang", True)])

    assert text == json == Behaviour(delay_seconds=1.5, status=503, hang=True)


def test_other_names_are_not_the_mocks_and_the_last_of_a_name_counts() -> None:
    pairs = [("model", "x"), ("delay_seconds", "9"), ("mock_status", "500"), ("mock_status", "204")]

    assert parse_behaviour(pairs) == Behaviour(status=204)


def test_every_field_of_a_behaviour_can_be_asked_for() -> None:
    assert set(_READERS) == {field.name for field in fields(Behaviour)}


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("mock_delay_seconds", "-0.1", "seconds from 0 to 86400"),
        ("mock_delay_seconds", "inf", "seconds from 0 to 86400"),
        ("mock_delay_seconds", "soon", "seconds from 0 to 86400"),
        ("mock_delay_seconds", True, "seconds from 0 to 86400"),
        ("mock_delay_seconds", [1], "seconds from 0 to 86400"),
        ("mock_delay_seconds", 10**400, "seconds from 0 to 86400"),
        ("mock_status", "199", "a whole number from 200 to 599"),
        ("mock_status", "500.5", "a whole number from 200 to 599"),
        ("mock_status", None, "a whole number from 200 to 599"),
        ("mock_hang", "maybe", "true or false"),
        ("mock_response_bytes", "-1", "a whole number from 0 to"),
        ("mock_times", "0", "a whole number from 1 to"),
        ("mock_content_type", "a\r\nX: y", "1 to 200 printable ASCII"),
        ("mock_content_type", 5, "1 to 200 printable ASCII"),
        ("mock_dely_seconds", "1", r"unknown \(did you mean mock_delay_seconds\?\)"),
        ("mock_", "1", "unknown"),
    ],
)
def test_a_wrong_value_or_name_is_refused_by_name_and_rule(name: str, value: object, rule: str) -> None:
    with pytest.raises(BehaviourError, match=f"{name}: {rule}"):
        _ = parse_behaviour([(name, value)])


json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=3)


@settings(deadline=None)
@given(st.sampled_from(sorted(_READERS)), json_values)
def test_any_value_is_taken_or_refused(field: str, value: object) -> None:
    try:
        behaviour = parse_behaviour([(f"mock_{field}", value)])
    except BehaviourError as error:
        assert str(error).startswith(f"mock_{field}: ")  # noqa: PT017  taking the value is as good an outcome
    else:
        assert isinstance(behaviour, Behaviour)
