"""The mock's variables: read once, checked, named when wrong."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "MOCK_"
# a day: longer waits are a mistake in the test that asks for them
MAX_SECONDS: Final = 86_400.0


class SettingsError(ValueError):
    """Names every variable that is unknown or out of bounds, and the rule."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the mock listens and how it treats connections."""

    host: str = "127.0.0.1"
    port: int = 9000
    ready_after_seconds: float = 0.0
    keep_alive_seconds: int = 5


# (variable, default, description): for the documentation
VARIABLES: Final = (
    ("MOCK_HOST", "127.0.0.1", "Address to listen on; images set 0.0.0.0."),
    ("MOCK_PORT", "9000", "Port to listen on, 1 to 65535."),
    ("MOCK_READY_AFTER_SECONDS", "0", "How long `/health` and the model answer 503 after the start, as while loading."),
    ("MOCK_KEEP_ALIVE_SECONDS", "5", "An idle connection is closed after this long, 1 to 86400."),
)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings of ``environ``; an empty variable counts as unset.

    Raises:
        SettingsError: a variable is unknown or out of bounds.
    """
    known = [variable for variable, _, _ in VARIABLES]
    defaults = Settings()
    problems = [
        f"{name}: unknown setting{_hint(name, known)}"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known
    ]

    def number(variable: str, low: float, high: float, default: float, *, whole: bool = False) -> float:
        text = environ.get(variable, "")
        if not text:
            return default
        try:
            value = float(int(text) if whole else float(text))
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            problems.append(f"{variable}: a {'whole ' if whole else ''}number from {low:g} to {high:g}")
            return default
        return value

    settings = Settings(
        host=environ.get("MOCK_HOST", "") or defaults.host,
        port=int(number("MOCK_PORT", 1, 65_535, defaults.port, whole=True)),
        ready_after_seconds=number("MOCK_READY_AFTER_SECONDS", 0, MAX_SECONDS, defaults.ready_after_seconds),
        keep_alive_seconds=int(
            number("MOCK_KEEP_ALIVE_SECONDS", 1, MAX_SECONDS, defaults.keep_alive_seconds, whole=True)
        ),
    )
    if problems:
        raise SettingsError("; ".join(problems))
    return settings


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {near[0]}?)" if near else ""
