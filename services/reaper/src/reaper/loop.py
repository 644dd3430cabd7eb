"""Runs every pass at its own pace, keeps their failures apart, and says when they stay broken.

A pass is a name, an interval and a piece of work for each of its parts. What one part raises is counted, logged once
and stops neither the other parts nor the next round. The process ends with an error when a loop dies, or when the vital
passes have reached nothing for ``BROKEN_AFTER_SECONDS``: whoever started it then starts it anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from queuecore.clock import monotonic
from queuecore.errors import BrokerUnavailable, OutcomeUnknown, QueueCoreError
from queuecore.service import repeat
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event
from reaper.grace import RestartGrace
from reaper.ledger import BROKEN_AFTER_SECONDS, Ledger

STOP_WITHIN_SECONDS: Final = 3.0

_log = logging.getLogger(__name__)

Work = Callable[[], Awaitable[object]]


class Pass(NamedTuple):
    """``parts``: what to do for each model, or for "all" at once.

    A vital pass decides about liveness. One that ``asks`` always talks to the server, so its success ends an outage;
    others may succeed by doing nothing.
    """

    name: str
    every_seconds: float
    parts: Mapping[str, Work]
    vital: bool = True
    asks: bool = False


class LoopsBroken(Exception):
    """The passes named in the text have reached nothing for too long."""


class Loops:
    """All passes of one reaper."""

    def __init__(
        self, passes: Sequence[Pass], ledger: Ledger, grace: RestartGrace, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._passes = passes
        self._ledger = ledger
        self._grace = grace
        self._clock = clock
        for one in passes:
            ledger.expect(one.name, one.parts, every_seconds=one.every_seconds, vital=one.vital)
            metrics.PASS_LAST_SUCCESS.labels(one.name).set(0)

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``.

        Raises:
            LoopsBroken: see there.
        """
        async with asyncio.TaskGroup() as group:
            loops = [group.create_task(self._repeat(one, stop), name=f"pass {one.name}") for one in self._passes]
            loops.append(group.create_task(repeat(self._check, every_seconds=1, stop=stop), name="watch"))
            _ = await stop.wait()
            _, late = await asyncio.wait(loops, timeout=STOP_WITHIN_SECONDS)
            for loop in late:
                _ = loop.cancel()  # a pass may end anywhere: every script is whole, and another reaper goes on

    async def _repeat(self, one: Pass, stop: asyncio.Event) -> None:
        ages = metrics.TASK_AGE_SECONDS.labels(one.name)
        began = self._clock()

        def age() -> float:
            return self._clock() - began

        ages.set_function(age)

        async def round_() -> None:
            nonlocal began
            began = self._clock()
            await self.run_once(one)

        await repeat(round_, every_seconds=one.every_seconds, stop=stop)

    async def run_once(self, one: Pass) -> bool:
        """One round over all parts; whether all succeeded."""
        began, good = self._clock(), True
        for part, work in one.parts.items():
            good &= await self._run_part(one, part, work)
        metrics.PASS_SECONDS.labels(one.name).observe(self._clock() - began)
        if good:
            metrics.PASS_LAST_SUCCESS.labels(one.name).set_to_current_time()
        return good

    async def _run_part(self, one: Pass, part: str, work: Work) -> bool:
        fields = {"pass": one.name, "part": part}
        try:
            async with asyncio.timeout(max(60, 10 * one.every_seconds)):
                _ = await work()
        except QueueCoreError as error:
            if type(error) in {BrokerUnavailable, OutcomeUnknown}:  # a missing permission is no outage
                self._grace.away()
            self._note_failure(one, part, f"{error.code}: {error}", exc_info=False)
            return False
        except Exception as error:  # noqa: BLE001  the outermost frame of a part: a bug in one must not stop the others
            self._note_failure(one, part, f"{type(error).__name__}: {error}", exc_info=True)
            return False
        if one.asks and self._grace.answered(self._clock()):
            _log.warning("Redis answers again: nothing is reaped for one lease", extra={"event": Event.GRACE_STARTED})
        if self._ledger.succeeded(one.name, part, self._clock()):
            _log.info("the pass works again", extra={"event": Event.PASS_RESTORED} | fields)
        return True

    def _note_failure(self, one: Pass, part: str, problem: str, *, exc_info: bool) -> None:
        metrics.PASS_FAILURES.labels(one.name).inc()
        if self._ledger.failed(one.name, part, problem):
            fields = {"event": Event.PASS_FAILED, "pass": one.name, "part": part, "problem": problem}
            _log.error("a pass failed; it is tried again", extra=fields, exc_info=exc_info)

    async def _check(self) -> None:
        broken = self._ledger.overdue(self._clock(), after_seconds=BROKEN_AFTER_SECONDS)
        if broken:
            raise LoopsBroken(f"no success for over {BROKEN_AFTER_SECONDS:.0f} s: {', '.join(broken)}")
