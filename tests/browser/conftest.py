"""A real gateway with queues in every state, and Debian's Chromium on its console."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser, async_playwright

from browser.scene import MODELS, Scene
from queuecore.testing.raw_http import HeldModel
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock, Yard

CHROMIUM: Final = shutil.which("chromium")
FLAGS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as server:
        yield server


@pytest.fixture(scope="session")
def mock() -> Iterator[Mock]:
    with Mock() as server:
        yield server


@pytest.fixture
async def model() -> AsyncIterator[HeldModel]:
    async with HeldModel() as server:
        yield server


@pytest.fixture
async def scene(valkey: ValkeyProcess, mock: Mock, tmp_path: Path) -> AsyncIterator[Scene]:
    yard = Yard(valkey, mock, tmp_path)
    try:
        await yard.flush()
        models_file = tmp_path / "served.yaml"
        _ = models_file.write_text(MODELS, "utf-8")
        made = Scene(yard, models_file)
        made.console = await made.start()
        yield made
    finally:
        await yard.aclose()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        text = "Chromium is not installed (Debian: chromium): the console was not looked at in a browser"
        pytest.fail(text) if os.environ.get("CI") == "true" else pytest.skip(text)
    async with async_playwright() as driver:
        launched = await driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield launched
        await launched.close()
