"""The background tasks of one process: started together, watched by age, stopped together.

A task that ends, ends the process (with an error when it failed): a gateway that looks alive while its subscriber is
dead would be deaf for ever (case A3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from queuecore.clock import monotonic
from queuecore.telemetry import metrics

Beat: TypeAlias = Callable[[], None]
Work: TypeAlias = Callable[[Beat], Awaitable[None]]


class Tasks:
    """Named tasks. ``ages()`` may be asked from any thread."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._beats: dict[str, float] = {}

    def start(self, name: str, work: Work) -> None:
        """Run ``work``, which calls its argument every time it goes round."""

        async def run() -> None:
            await work(lambda: self._beats.update({name: monotonic()}))

        self._beats[name] = monotonic()
        metrics.TASK_AGE_SECONDS.labels(name).set_function(lambda: self._age(name))
        self._tasks[name] = asyncio.create_task(run(), name=name)

    def ages(self) -> Mapping[str, float]:
        """Seconds since each task last went round."""
        return {name: self._age(name) for name in list(self._beats)}

    def _age(self, name: str) -> float:
        return monotonic() - self._beats[name]

    async def first_end(self) -> asyncio.Task[None]:
        """The first task that ends; there must be one."""
        done, _ = await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done))

    async def stop(self) -> None:
        """Cancel all and wait for them; what they raise while they are stopped is of no use to anybody."""
        for task in self._tasks.values():
            _ = task.cancel()
        if self._tasks:
            _ = await asyncio.wait(self._tasks.values())
        for name in self._tasks:
            metrics.TASK_AGE_SECONDS.remove(name)
        self._tasks.clear()
