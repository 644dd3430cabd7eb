"""MOCK_ variables: defaults, bounds, and names that nobody knows."""

from __future__ import annotations

import pytest

from mock_inference.settings import VARIABLES, Settings, SettingsError, read_settings


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = read_settings({"PATH": "/bin", "MOCKINGBIRD": "1", "MOCK_PORT": ""})

    assert settings == Settings(host="127.0.0.1", port=9000, ready_after_seconds=0.0, keep_alive_seconds=5)
    assert [default for _, default, _ in VARIABLES] == ["127.0.0.1", "9000", "0", "5"]


def test_every_variable_is_read() -> None:
    environ = {"MOCK_HOST": "0.0.0.0", "MOCK_PORT": "9001", "MOCK_READY_AFTER_SECONDS": "2.5"}

    assert read_settings({**environ, "MOCK_KEEP_ALIVE_SECONDS": "1"}) == Settings("0.0.0.0", 9001, 2.5, 1)


@pytest.mark.parametrize(
    ("variable", "value", "rule"),
    [
        ("MOCK_PORT", "0", "a whole number from 1 to 65535"),
        ("MOCK_PORT", "65536", "a whole number from 1 to 65535"),
        ("MOCK_PORT", "9000.5", "a whole number from 1 to 65535"),
        ("MOCK_PORT", "tcp://10.0.0.1:9000", "a whole number from 1 to 65535"),
        ("MOCK_READY_AFTER_SECONDS", "-1", "a number from 0 to 86400"),
        ("MOCK_READY_AFTER_SECONDS", "nan", "a number from 0 to 86400"),
        ("MOCK_READY_AFTER_SECONDS", "inf", "a number from 0 to 86400"),
        ("MOCK_KEEP_ALIVE_SECONDS", "0", "a whole number from 1 to 86400"),
        ("MOCK_READY_AFTER", "1", r"unknown setting \(did you mean MOCK_READY_AFTER_SECONDS\?\)"),
        ("MOCK_", "", "unknown setting"),
    ],
)
def test_a_wrong_or_unknown_variable_is_refused_by_name_and_rule(variable: str, value: str, rule: str) -> None:
    with pytest.raises(SettingsError, match=f"{variable}: {rule}"):
        _ = read_settings({variable: value})


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(SettingsError, match=r"MOCK_X: .*; MOCK_PORT: .*; MOCK_KEEP_ALIVE_SECONDS: "):
        _ = read_settings({"MOCK_X": "1", "MOCK_PORT": "x", "MOCK_KEEP_ALIVE_SECONDS": "x"})
