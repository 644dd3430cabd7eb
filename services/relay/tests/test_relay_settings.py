from __future__ import annotations

import pytest

from queuecore.errors import ConfigurationError
from queuecore.settings import describe, read_settings
from queuecore.testing.requirement import requirement
from relay.settings import RelaySettings


def test_the_defaults_are_those_of_the_interface() -> None:
    defaults = {name: default for name, default, _ in describe(RelaySettings)}
    assert defaults == {
        "RELAY_MODEL": "required",
        "RELAY_QUEUE_POP_TIMEOUT_SECONDS": "300",
        "RELAY_INFERENCE_URL": "http://127.0.0.1:9000",
        "RELAY_READY_TIMEOUT_SECONDS": "600",
        "RELAY_EXECUTION_TIMEOUT_SECONDS": "3600",
        "RELAY_MAX_JOBS": "1",
        "RELAY_DRAIN_SECONDS": "30",
        "RELAY_EXIT_WHEN_EMPTY": "false",
        "RELAY_METRICS_HOST": "127.0.0.1",
        "RELAY_METRICS_PORT": "9102",
        "RELAY_BREAKER_FAILURES": "5",
        "RELAY_BREAKER_COOLDOWN_SECONDS": "60",
    }
    assert all(text for _, _, text in describe(RelaySettings))


@requirement("start:any:unknown-setting-refused")
@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("RELAY_MODLE", "x", "RELAY_MODEL"),
        ("RELAY_MODEL", "", "required"),
        ("RELAY_QUEUE_POP_TIMEOUT_SECONDS", "-1", "RELAY_QUEUE_POP_TIMEOUT_SECONDS"),
        ("RELAY_READY_TIMEOUT_SECONDS", "0", "RELAY_READY_TIMEOUT_SECONDS"),
        ("RELAY_MAX_JOBS", "1.5", "RELAY_MAX_JOBS"),
        ("RELAY_METRICS_PORT", "70000", "RELAY_METRICS_PORT"),
        ("RELAY_EXIT_WHEN_EMPTY", "perhaps", "RELAY_EXIT_WHEN_EMPTY"),
        ("RELAY_INFERENCE_URL", "127.0.0.1:9000", "RELAY_INFERENCE_URL"),
        ("RELAY_INFERENCE_URL", "http://user:secret@host", "RELAY_INFERENCE_URL"),
        ("RELAY_INFERENCE_URL", "http://host:99999", "RELAY_INFERENCE_URL"),
        ("RELAY_INFERENCE_URL", "http://host/?q=1", "RELAY_INFERENCE_URL"),
    ],
)
def test_a_wrong_variable_stops_the_start_and_is_named(variable: str, value: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        _ = read_settings(RelaySettings, {"RELAY_MODEL": "m", variable: value})


def test_zero_means_for_ever_until_idle_and_off() -> None:
    settings = read_settings(
        RelaySettings,
        {
            "RELAY_MODEL": "m",
            "RELAY_QUEUE_POP_TIMEOUT_SECONDS": "0",
            "RELAY_MAX_JOBS": "0",
            "RELAY_METRICS_PORT": "0",
            "RELAY_EXIT_WHEN_EMPTY": "TRUE",
        },
    )
    assert (settings.queue_pop_timeout_seconds, settings.max_jobs, settings.metrics_port) == (0, 0, 0)
    assert settings.exit_when_empty
