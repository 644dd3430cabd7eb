"""Real processes on a real server, with everything a job touches in one place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock, Yard


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as server:
        yield server


@pytest.fixture(scope="session")
def mock() -> Iterator[Mock]:
    with Mock() as server:
        yield server


@pytest.fixture
async def yard(valkey: ValkeyProcess, mock: Mock, tmp_path: Path) -> AsyncIterator[Yard]:
    made = Yard(valkey, mock, tmp_path)
    await made.flush()
    yield made
    await made.aclose()


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A line for whoever watches the run: what was measured."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    return lambda text: reporter.write_line(f"  {text}") if reporter else None
