"""What every peer's driver shares: the clock of its worker and how it says what it measured. Standard library only.

A driver is `python driver.py submit|work URL COUNT`. `submit` prints {"seconds"} for COUNT jobs of 200 bytes, sent by
its library's usual call, ten at a time where it is asynchronous. `work` runs one warm worker, at concurrency ten where
the library has such a setting, and ends after COUNT jobs with {"seconds", "cpu_seconds"} from first to last.

With BENCH_TIMES both write a line into that file for each job, when it is about to be sent and when it begins to run,
in nanoseconds of the machine's monotonic clock; with BENCH_PACE a job is sent every so many seconds and no sooner.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

TIMES = os.environ.get("BENCH_TIMES", "")
PACE_SECONDS = float(os.environ.get("BENCH_PACE", "0"))
PAYLOAD = "x" * 200
WIDTH = 10


def command() -> tuple[str, str, int]:
    """(submit or work, the server's URL, how many)."""
    return sys.argv[1], sys.argv[2], int(sys.argv[3])


def say(**figures: float) -> None:
    """One line of JSON."""
    print(json.dumps(figures), flush=True)


def note() -> None:
    """This instant, for who wants the times."""
    if TIMES:
        with pathlib.Path(TIMES).open("a", encoding="ascii") as file:
            file.write(f"{time.monotonic_ns()}\n")


def paced(count: int) -> Iterator[int]:
    """Numbers of the jobs to be sent by a client that blocks."""
    for number in range(count):
        if PACE_SECONDS:
            time.sleep(PACE_SECONDS)
        note()
        yield number


async def send(count: int, one: Callable[[int], Awaitable[object]]) -> None:
    """COUNT calls, ten at a time, timed."""
    numbers = iter(range(count))

    async def lane() -> None:
        for number in numbers:
            if PACE_SECONDS:
                await asyncio.sleep(PACE_SECONDS)
            note()
            _ = await one(number)

    began = time.perf_counter()
    _ = await asyncio.gather(*(lane() for _ in range(1 if PACE_SECONDS else WIDTH)))
    say(seconds=time.perf_counter() - began)


class Meter:
    """Counts the jobs of a worker; the last one says the figures and ends the process."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.began = 0.0
        self.cpu = 0.0
        self.noted = False

    def starts(self) -> None:
        """A job begins; for workers that are not told by a call of the job itself."""
        self.noted = True
        note()

    def __call__(self) -> None:
        """One job has run."""
        if not self.noted:
            note()
        if not self.began:
            self.began, self.cpu = time.perf_counter(), time.process_time()
        self.left -= 1
        if self.left == 0:
            say(seconds=time.perf_counter() - self.began, cpu_seconds=time.process_time() - self.cpu)
            os._exit(0)
