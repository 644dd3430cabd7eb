"""A reaper in this process, over any queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from prometheus_client import REGISTRY

from queuecore.blobs import BlobStore
from queuecore.broker import Broker, Server, Signals
from reaper.settings import ReaperSettings
from reaper.upkeep import Upkeep

Running = Callable[..., AbstractAsyncContextManager[Upkeep]]


@pytest.fixture
def running() -> Running:
    """``async with running(brokers, queue.server, queue.signals, store=…, **settings) as upkeep``."""

    @asynccontextmanager
    async def run(
        brokers: Sequence[Broker],
        server: Server,
        signals: Signals,
        *,
        store: BlobStore | None = None,
        interval_seconds: float = 0.05,
        death_grace_seconds: float = 0.2,
        orphan_min_age_seconds: int = 3600,
    ) -> AsyncGenerator[Upkeep, None]:
        settings = ReaperSettings(
            interval_seconds=interval_seconds,
            death_grace_seconds=death_grace_seconds,
            orphan_min_age_seconds=orphan_min_age_seconds,
        )
        upkeep = Upkeep(settings, brokers, server=server, signals=signals, store=store)
        stop = asyncio.Event()
        task = asyncio.create_task(upkeep.run(stop))
        try:
            yield upkeep
            assert not task.done(), "the reaper is still running"
        finally:
            stop.set()
            await asyncio.wait_for(task, 10)

    return run


@pytest.fixture
def sample() -> Callable[..., float]:
    """The value of a metric now: ``sample("name", model="m")``."""

    def read(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(name, labels) or 0.0

    return read
