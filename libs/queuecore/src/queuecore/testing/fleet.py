"""Relays kept at a number, as a scaler keeps them: one that ends is replaced at once."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from typing import Final, Self

from queuecore.testing.yard import Process, Yard

_LONGEST_LIFE_SECONDS: Final = 600.0


class Fleet:
    """``async with Fleet(yard, 8) as fleet``; what still runs at the end is killed. ``environ`` is every relay's."""

    def __init__(self, yard: Yard, size: int, **environ: str) -> None:
        self._yard = yard
        self._size = size
        self._environ = environ
        self._random = random.Random(size)  # noqa: S311  the same victims in every run
        self._places: list[asyncio.Task[None]] = []
        self.alive: list[Process] = []
        self.codes: Counter[int] = Counter()  # exit codes so far; a signal is negative

    async def __aenter__(self) -> Self:
        self._places = [asyncio.create_task(self._keep()) for _ in range(self._size)]
        return self

    async def __aexit__(self, *_exit: object) -> None:
        for place in self._places:
            _ = place.cancel()
        _ = await asyncio.gather(*self._places, return_exceptions=True)
        for relay in self.alive:
            relay.signal(signal.SIGKILL)
            _ = await relay.ended()

    def kill_one(self) -> None:
        """SIGKILL to any of those alive, whatever it is doing."""
        if self.alive:
            self._random.choice(self.alive).signal(signal.SIGKILL)

    async def _keep(self) -> None:
        while True:
            relay = await self._yard.relay(**self._environ)  # pyright: ignore[reportArgumentType]  no such key
            self.alive.append(relay)
            code = await relay.ended(_LONGEST_LIFE_SECONDS)
            self.alive.remove(relay)
            self.codes[code] += 1
