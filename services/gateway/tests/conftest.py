"""The fixtures; what they are made of is in ``gateway_stack``."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not, and the tests share gateway_stack

from gateway_stack import DATA, MakeStack, Stack, open_stack


@pytest.fixture
async def make_stack() -> AsyncIterator[MakeStack]:
    """Makes stacks with other settings; they end with the test."""
    async with AsyncExitStack() as stack:

        async def make(*args: Any, **kwargs: Any) -> Stack:
            return await stack.enter_async_context(open_stack(*args, **kwargs))

        yield make


@pytest.fixture
async def stack(make_stack: MakeStack) -> Stack:
    """A stack with default settings and auth `none`."""
    return await make_stack()


@pytest.fixture
def wav() -> bytes:
    """The smallest WAV file."""
    return (DATA / "tiny.wav").read_bytes()


@pytest.fixture
def data() -> Path:
    """Where the corpus lies."""
    return DATA
