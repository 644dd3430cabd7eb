"""Shared by every suite: async tests run on asyncio."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# The machine's mood must not decide a test, and CI must see what a laptop sees.
# A machine that runs other things makes examples slowly; that says nothing of them.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Nightly runs give the hypothesis machine more room than a laptop's."""
    parser.addoption("--machine-examples", type=int, default=100, help="examples of the hypothesis state machine")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests measured (``record_property("measured", …)``), whichever worker they ran in."""
    lines = [
        str(value)
        for kind in ("passed", "failed")
        for report in terminalreporter.stats.get(kind, [])
        for name, value in report.user_properties
        if name == "measured"
    ]
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
