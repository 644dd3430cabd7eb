"""Redrives at a pace, in the background of this gateway.

An order is a list of dead letters and a pace. It lives in memory: a gateway that stops leaves the rest where they are,
as dead letters, and the operator orders again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway import operator
from gateway.problems import Refusal
from queuecore.broker import Broker
from queuecore.clock import monotonic
from queuecore.errors import BrokerError, QueueCoreError
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

SLOWEST_PER_SECOND: Final = 0.1
FASTEST_PER_SECOND: Final = 100.0
REFUSALS_KEPT: Final = 20
_BEAT_SECONDS: Final = 1.0


@dataclass
class Order:
    """One redrive of one queue, running until ``waiting`` is empty or it is ``stopped`` (why)."""

    model: str
    total: int
    per_second: float
    waiting: deque[str] = field(repr=False)
    due: float
    redriven: int = 0
    refused: int = 0
    refusals: deque[str] = field(default_factory=lambda: deque(maxlen=REFUSALS_KEPT))
    stopped: str = ""

    @property
    def running(self) -> bool:
        """Whether there is more to come."""
        return bool(self.waiting) and not self.stopped


class Redrives:
    """The last order of each queue."""

    def __init__(self, brokers: Mapping[str, Broker]) -> None:
        self._brokers = brokers
        self._orders: dict[str, Order] = {}
        self._changed = asyncio.Event()

    def order(self, model: str, ids: Sequence[str], per_second: float) -> Order:
        """Begin.

        Raises:
            Refusal: one runs for this queue already (409).
        """
        if (current := self._orders.get(model)) and current.running:
            raise Refusal(409, "redrive_running", f"A redrive of {model} runs already; stop it first.")
        made = Order(model, len(ids), per_second, deque(ids), due=monotonic())
        self._orders[model] = made
        self._changed.set()
        return made

    def stop(self, model: str) -> None:
        """Leave the rest as they are."""
        if (current := self._orders.get(model)) and current.running:
            current.stopped = "stopped by an operator"

    def of(self, model: str) -> Order | None:
        """The running or last order of a queue."""
        return self._orders.get(model)

    async def work(self, beat: Callable[[], None]) -> None:
        """Do what was ordered, for ever; ``beat`` is called at least every second."""
        while True:
            beat()
            self._changed.clear()
            for order in [order for order in self._orders.values() if order.running and order.due <= monotonic()]:
                await self._step(order)
            pause = min((order.due for order in self._orders.values() if order.running), default=float("inf"))
            try:
                async with asyncio.timeout(max(0.0, min(pause - monotonic(), _BEAT_SECONDS))):
                    _ = await self._changed.wait()
            except TimeoutError:
                continue

    async def _step(self, order: Order) -> None:
        job_id = order.waiting.popleft()
        try:
            await operator.redrive(self._brokers[order.model], job_id)
            order.redriven += 1
        except BrokerError as error:
            order.waiting.appendleft(job_id)
            order.stopped = str(error)
        except QueueCoreError as error:
            order.refused += 1
            order.refusals.append(str(error))
        # Late steps are not made up for: a pace is a promise to whatever takes the jobs.
        order.due = monotonic() + 1 / order.per_second
        if not order.running:
            _log.warning(
                "%d dead letters redriven", order.redriven, extra={"event": Event.JOB_REDRIVEN, "model": order.model}
            )
