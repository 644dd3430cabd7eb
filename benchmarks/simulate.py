"""Bursts of arrivals, cold starts and KEDA's rule of a ScaledJob: waiting times and surplus pods for your own numbers.

    python benchmarks/simulate.py --per-minute 30 --burst 200 --burst-every 600 --job-seconds 20 --start-seconds 15 \\
        --max 50 --polling-seconds 5 --minutes 120 --seed 1

Arrivals are a Poisson stream plus bursts that come all at once; a job's length is drawn from an exponential
distribution around the mean. Each pod works on one job and ends; one that finds the queue empty gives up after
``--idle-seconds`` and counts as surplus. The rule is the one of ``relayq autoscale-plan``. The same seed
prints the same figures.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections import deque
from typing import NamedTuple

from relayq.autoscale import jobs_to_start


class Load(NamedTuple):
    """What arrives, and what serves it. Durations in seconds."""

    per_minute: float = 30
    burst: int = 200
    burst_every: float = 600
    job_seconds: float = 20
    start_seconds: float = 15
    most: int = 50
    polling_seconds: float = 5
    idle_seconds: float = 300
    minutes: float = 120
    seed: int = 1


class Outcome(NamedTuple):
    """Over the jobs that arrived within ``minutes``, all of them served."""

    jobs: int
    wait_p50_seconds: float
    wait_p95_seconds: float
    wait_p99_seconds: float
    longest_wait_seconds: float
    pods: int
    surplus_pods: int
    pod_seconds: float
    busy_share: float


def arrivals(load: Load, chance: random.Random) -> list[float]:
    """Moments, ascending."""
    end, found, at = load.minutes * 60, [], 0.0
    while load.per_minute:
        at += chance.expovariate(load.per_minute / 60)
        if at >= end:
            break
        found.append(at)
    burst_at = load.burst_every
    while load.burst and burst_at < end:
        found += [burst_at] * load.burst
        burst_at += load.burst_every
    return sorted(found)


def simulate(load: Load) -> Outcome:
    """Until the last pod has ended."""
    chance = random.Random(load.seed)
    coming = arrivals(load, chance)
    lengths = [chance.expovariate(1 / load.job_seconds) for _ in coming]
    queue: deque[int] = deque()
    idle: deque[float] = deque()  # since when each idle pod waits, the longest first
    starting: list[float] = []
    working: list[float] = []
    waits = [0.0] * len(coming)
    pods = surplus = arrived = 0
    pod_seconds = look_at = 0.0

    def take(at: float) -> None:
        job = queue.popleft()
        waits[job] = at - coming[job]
        heapq.heappush(working, at + lengths[job])

    while arrived < len(coming) or queue or working or starting or idle:
        at = min(
            coming[arrived] if arrived < len(coming) else float("inf"),
            starting[0] if starting else float("inf"),
            working[0] if working else float("inf"),
            idle[0] + load.idle_seconds if idle else float("inf"),
            look_at,
        )
        if arrived < len(coming) and coming[arrived] == at:
            queue.append(arrived)
            arrived += 1
            if idle:
                pod_seconds += at - idle.popleft() + lengths[queue[0]]
                take(at)
        elif starting and starting[0] == at:
            _ = heapq.heappop(starting)
            pod_seconds += load.start_seconds
            if queue:
                pod_seconds += lengths[queue[0]]
                take(at)
            else:
                idle.append(at)
        elif working and working[0] == at:
            _ = heapq.heappop(working)
        elif idle and idle[0] + load.idle_seconds == at:
            _ = idle.popleft()
            surplus += 1
            pod_seconds += load.idle_seconds
        else:
            unfinished = len(starting) + len(idle) + len(working)
            more = jobs_to_start(len(queue), len(working), unfinished, load.most)
            pods += more
            for _ in range(more):
                heapq.heappush(starting, at + load.start_seconds)
            look_at += load.polling_seconds
    waits.sort()

    def part(share: float) -> float:
        return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else 0.0

    busy = sum(lengths) / pod_seconds if pod_seconds else 0.0
    return Outcome(len(coming), part(0.5), part(0.95), part(0.99), part(1), pods, surplus, pod_seconds, busy)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in Load()._asdict().items():
        option = "--max" if name == "most" else f"--{name.replace('_', '-')}"
        _ = parser.add_argument(option, dest=name, type=type(default), default=default, help=f"default {default}")
    load = Load(**vars(parser.parse_args()))
    if (
        min(load.job_seconds, load.polling_seconds, load.minutes, load.burst_every) <= 0
        or load.most < 1
        or min(load) < 0
    ):
        parser.error("job, polling, burst-every and minutes are over 0, --max is at least 1, nothing is negative")
    found = simulate(load)
    print(f"jobs                   {found.jobs:10}")
    for name in ("wait_p50", "wait_p95", "wait_p99", "longest_wait"):
        print(f"{name.replace('_', ' '):<22} {getattr(found, f'{name}_seconds'):10.1f} s")
    print(f"pods started           {found.pods:10}")
    print(f"of them surplus        {found.surplus_pods:10}   (found no job within {load.idle_seconds:g} s)")
    print(f"pod time               {found.pod_seconds / 3600:10.1f} h   ({found.busy_share:.0%} of it worked)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
