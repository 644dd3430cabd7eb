"""Shared by every suite: async tests run on asyncio."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Nightly runs give the hypothesis machine more room than a laptop's."""
    parser.addoption("--machine-examples", type=int, default=100, help="examples of the hypothesis state machine")
