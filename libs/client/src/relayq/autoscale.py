"""What KEDA does for a queue's state, as the chart sets it up; nothing is asked and nothing happens here.

A ScaledJob counts the open jobs (waiting + running), takes the maximum at most, and starts as many Kubernetes Jobs as
that is more than its unfinished ones. A ScaledObject gives the Deployment one relay for each open job between its
bounds, leaves it alone within a tenth, takes away slowly, and goes to zero only after the cool-down.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

# Kubernetes' horizontal autoscaler: smaller changes than this part of the present number are left alone.
TOLERANCE: Final = 0.1
# … and what it would take away it takes after the highest wish of so many seconds.
STABILISATION_SECONDS: Final = 300
MOST_LOOKS: Final = 100_000


def jobs_to_start(waiting: int, running: int, unfinished: int, most: int) -> int:
    """Kubernetes Jobs that a ScaledJob starts now."""
    return max(0, min(waiting + running, most) - unfinished)


def relays_wanted(waiting: int, running: int, now: int, least: int, most: int) -> int:
    """Relays that a ScaledObject wants, before what slows a scale-in."""
    jobs = waiting + running
    if now and jobs and abs(jobs / now - 1) <= TOLERANCE:
        return min(max(now, least), most)
    return min(max(jobs, least), most)


class Look(NamedTuple):
    """One look of KEDA at the queue."""

    at_seconds: float
    waiting: int
    running: int
    unfinished: int
    starts: int


class Forecast(NamedTuple):
    """A queue that nobody adds to, until it is empty."""

    looks: tuple[Look, ...]
    """Those at which a Job was started."""
    jobs: int
    longest_wait_seconds: float
    empty_after_seconds: float


def forecast(
    waiting: int,
    running: int = 0,
    *,
    unfinished: int = 0,
    most: int,
    polling_seconds: float,
    start_seconds: float,
    job_seconds: float,
) -> Forecast:
    """How a ScaledJob works the queue off, when each Job needs ``start_seconds`` until it takes a queued job.

    The ``running`` jobs have just begun; the other ``unfinished`` Jobs are about to take one each.
    """
    starting = [start_seconds] * max(0, unfinished - running)
    working = [job_seconds] * running
    left, made, at, longest, last = waiting, 0, 0.0, 0.0, 0.0
    looks: list[Look] = []
    while left or working:
        while starting or working:
            now = min(starting[0] if starting else at + 1, working[0] if working else at + 1)
            if now > at:
                break
            if working and working[0] == now:
                last = heapq.heappop(working)
            else:
                _ = heapq.heappop(starting)
                if left:
                    left -= 1
                    longest = max(longest, now)
                    heapq.heappush(working, now + job_seconds)
        more = jobs_to_start(left, len(working), len(starting) + len(working), most)
        if more:
            looks.append(Look(at, left, len(working), len(starting) + len(working), more))
            made += more
            for _ in range(more):
                heapq.heappush(starting, at + start_seconds)
        at += polling_seconds
        if at > MOST_LOOKS * polling_seconds:
            raise ValueError(f"not empty after {MOST_LOOKS} looks")
    return Forecast(tuple(looks), made, longest, last)
