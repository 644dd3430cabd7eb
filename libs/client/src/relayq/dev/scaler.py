"""What KEDA does in a cluster: one relay process per open job up to a maximum, none when idle."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from queuecore.clock import monotonic
from queuecore.errors import BrokerError
from relayq.dev.child import Report, end, ending, kill

POLL_SECONDS: Final = 0.25
IDLE_POLLS: Final = 3
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
CLAIM_LOST: Final = 3  # the relay worked, another owner was faster

OpenJobs = Callable[[], Awaitable[Mapping[str, int]]]
StartRelay = Callable[[str], Awaitable[Process]]


def starts(open_jobs: Mapping[str, int], running: Mapping[str, int], most: int) -> list[str]:
    """Models that get one more relay each, in turn, so that no model takes all the places of ``most``."""
    need = {model: count - running.get(model, 0) for model, count in open_jobs.items()}
    places = most - sum(running.values())
    chosen: list[str] = []
    while len(chosen) < places and (wanting := [model for model, count in need.items() if count > 0]):
        for model in wanting[: places - len(chosen)]:
            chosen.append(model)
            need[model] -= 1
    return chosen


class Scaler:
    """Looks at the queues and keeps the relays.

    ``open_jobs`` gives pending + processing per model; ``start`` starts a relay for one.
    """

    def __init__(self, open_jobs: OpenJobs, start: StartRelay, most: int, report: Report) -> None:
        self._open_jobs = open_jobs
        self._start = start
        self._most = most
        self._report = report
        self._relays: dict[Process, str] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._idle_polls: dict[str, int] = {}
        self._failures: dict[str, tuple[int, float]] = {}  # model -> failures in a row, not before
        self._wake = asyncio.Event()

    @property
    def relays(self) -> Mapping[int, str]:
        """pid -> model of the relays that run."""
        return {process.pid: model for process, model in self._relays.items()}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with suppress(BrokerError):  # Redis is away: its keeper restarts it
                await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    _ = await self._wake.wait()
            self._wake.clear()

    async def stop(self, *, within_seconds: float) -> list[int]:
        """End every relay; the pids that had to be killed."""
        killed = await end(list(self._relays), within_seconds=within_seconds)
        _ = await asyncio.gather(*self._watchers)
        return killed

    def kill(self) -> None:
        """End every relay now."""
        kill(self._relays)

    async def _look(self) -> None:
        open_jobs = await self._open_jobs()
        running: dict[str, int] = {}
        for model in self._relays.values():
            running[model] = running.get(model, 0) + 1
        now = monotonic()
        ready = {model: count for model, count in open_jobs.items() if self._failures.get(model, (0, 0.0))[1] <= now}
        for model in starts(ready, running, self._most):
            process = await self._start(model)
            self._relays[process] = model
            self._report(f"relay {process.pid} started for {model} ({open_jobs[model]} open)")
            watcher = asyncio.create_task(self._watch(process, model), name=f"watch relay {process.pid}")
            self._watchers.add(watcher)
            watcher.add_done_callback(self._watchers.discard)
        for model, count in open_jobs.items():
            self._idle_polls[model] = 0 if count else self._idle_polls.get(model, 0) + 1
            if self._idle_polls[model] == IDLE_POLLS:
                self._dismiss(model)

    def _dismiss(self, model: str) -> None:
        """End relays that wait for a job which is not there any more; should one arrive just now, it gives it back."""
        for process, served in self._relays.items():
            if served == model and process.returncode is None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)

    async def _watch(self, process: Process, model: str) -> None:
        code = await process.wait()
        del self._relays[process]
        self._report(f"relay {process.pid} for {model} ended ({ending(code)})")
        failures = self._failures.get(model, (0, 0.0))[0] + 1
        if code > 0 and code != CLAIM_LOST:
            pause = min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS)
            self._failures[model] = (failures, monotonic() + pause)
            self._report(f"{model}: its relay could not work; the next one starts in {pause:g} s. See logs/relay.log")
        elif code >= 0:
            _ = self._failures.pop(model, None)
        self._wake.set()
