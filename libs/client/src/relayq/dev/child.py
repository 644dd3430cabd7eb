"""Child processes: started so that they cannot outlive us, kept running, and ended within a bound."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from queuecore.clock import monotonic, sleep
from relayq.dev import tether
from relayq.dev.plan import Command, StackError

FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 5.0
SETTLED_SECONDS: Final = 10.0
LOG_TAIL_LINES: Final = 12
SHOWN_CHARACTERS: Final = 600

Report = Callable[[str], None]


async def launch(command: Command, log: Path) -> Process:
    """Start a command in a process group of its own, tethered to us; its output is appended to ``log``."""
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            tether.__file__,
            str(os.getpid()),
            *command.argv,
            env=dict(command.environ),
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,  # a terminal's Ctrl-C reaches us alone, and we end them in order
        )


async def end(processes: Iterable[Process], *, within_seconds: float) -> list[int]:
    """SIGTERM, and after the bound SIGKILL to the whole group; the pids that had to be killed."""
    running = [process for process in processes if process.returncode is None]
    for process in running:
        with suppress(ProcessLookupError):
            process.terminate()
    killed: list[int] = []
    if running:
        _, late = await asyncio.wait([asyncio.ensure_future(one.wait()) for one in running], timeout=within_seconds)
        if late:
            killed = [process.pid for process in running if process.returncode is None]
            kill(running)
            _ = await asyncio.wait(late)
    return killed


def kill(processes: Iterable[Process]) -> None:
    """SIGKILL now, with whatever they started."""
    for process in processes:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def ending(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "running"
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def tail(log: Path) -> str:
    """The last lines a child wrote."""
    with log.open("rb") as file:
        _ = file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(f"    {line[:SHOWN_CHARACTERS]}" for line in lines[-LOG_TAIL_LINES:])


class Service:
    """One service that is to run all the time. It must come up once; from then on it is restarted when it ends."""

    def __init__(self, command: Command, logs: Path, report: Report) -> None:
        self.name = command.name
        self.process: Process | None = None
        self._command = command
        self._log = logs / f"{command.name}.log"
        self._report = report
        self._keeper: asyncio.Task[None] | None = None
        self._settled = False

    async def start(self) -> None:
        """Start it and go on watching it."""
        self.process = await launch(self._command, self._log)
        self._keeper = asyncio.create_task(self._keep(self.process), name=f"keep {self.name}")

    def settle(self) -> None:
        """It has come up."""
        self._settled = True

    def check(self) -> None:
        """Whether it still runs while it comes up.

        Raises:
            StackError: it ended; with the last lines of its log.
        """
        if self.process is not None and self.process.returncode is not None:
            raise StackError(
                f"{self.name} did not start ({ending(self.process.returncode)}); the end of {self._log}:\n"
                f"{tail(self._log)}"
            )

    async def stop(self, *, within_seconds: float) -> list[int]:
        """End it for good; the pid if it had to be killed."""
        if self._keeper is not None:
            _ = self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        return await end([self.process] if self.process else [], within_seconds=within_seconds)

    async def _keep(self, process: Process) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            began = monotonic()
            code = await process.wait()
            if not self._settled:
                return  # `check` says so
            if monotonic() - began > SETTLED_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            self._report(f"{self.name} ended ({ending(code)}); started again in {pause:g} s. Log: {self._log}")
            await sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            process = self.process = await launch(self._command, self._log)
