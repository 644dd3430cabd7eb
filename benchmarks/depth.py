"""What a call costs with so many jobs waiting, each transport; and one reaper's pass over many running ones.

python benchmarks/depth.py [--depths 1000,10000,100000] [--running 10000] [--svg docs/img/depth.svg]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from queuecore.broker import NewJob, QueueLimits, Result, Worker
from queuecore.clock import monotonic
from queuecore.names import new_job_id
from queuecore.redis.broker import RedisBroker
from queuecore.redis.client import Link
from queuecore.redis.list_transport import ListBroker
from queuecore.redis.sortedset_transport import SortedSetBroker
from queuecore.redis.stream_transport import StreamBroker
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.servers import ValkeyProcess

CALLS: Final = 50
LANES: Final = 20
LEAST_DEPTH: Final = 1_000
RESULT: Final = Result("k", 1, "text/plain", "0" * 64)
COLOURS: Final = {"submit": "#2a6fb0", "claim + complete": "#2c8c4a", "cancel": "#b04a2a"}
Costs = dict[str, list[tuple[int, float]]]  # call -> (depth, p50 in ms)


async def median_ms(call: Callable[[], Awaitable[object]]) -> float:
    times: list[float] = []
    for _ in range(CALLS):
        began = monotonic()
        _ = await call()
        times.append(1000 * (monotonic() - began))
    return statistics.median(times)


async def fill(broker: RedisBroker, ids: list[str], depth: int) -> None:
    numbers = iter(range(len(ids), depth))

    async def lane() -> None:
        for _ in numbers:
            ids.append(await submit(broker))  # noqa: PERF401  in the order of their making, over all lanes

    _ = await asyncio.gather(*(lane() for _ in range(LANES)))


async def submit(broker: RedisBroker) -> str:
    job_id = new_job_id()
    _ = await broker.submit(NewJob(id=job_id, fields={}, priority="false" if broker.transport == "list" else "normal"))
    return job_id


async def costs(broker: RedisBroker, depths: list[int]) -> Costs:
    """Of one transport."""
    ids: list[str] = []
    chance = random.Random(1)
    claims = itertools.count()
    found: Costs = {name: [] for name in COLOURS}

    async def work() -> None:
        claim = await broker.claim(Worker("w"), f"c{next(claims)}", wait_seconds=0)
        assert claim is not None
        _ = await broker.complete(claim, RESULT)

    async def cancel() -> None:
        _ = await broker.cancel(ids.pop(chance.randrange(len(ids) // 2, len(ids))))  # claims take the older half

    for depth in depths:
        await fill(broker, ids, depth)
        found["submit"].append((depth, await median_ms(lambda: submit(broker))))
        found["claim + complete"].append((depth, await median_ms(work)))
        found["cancel"].append((depth, await median_ms(cancel)))
    return found


async def reaper_pass_ms(broker: RedisBroker, running: int) -> float:
    """All the looks it takes to have seen each of ``running`` claims once."""
    await fill(broker, [], running)
    for number in range(running):
        assert await broker.claim(Worker("w"), f"r{number}", wait_seconds=0) is not None
    began = monotonic()
    seen = 0
    while seen < running:
        seen += max(1, len(await broker.reap(limit=1_000)))
    return 1000 * (monotonic() - began)


def svg(found: Costs, title: str) -> str:
    """Log of depth against milliseconds, by hand: three lines need no library."""
    points = [point for line in found.values() for point in line]
    most = max(ms for _, ms in points) * 1.1
    depths = sorted({depth for depth, _ in points})

    def place(depth: int, ms: float) -> tuple[float, float]:
        at = depths.index(depth) / max(1, len(depths) - 1)
        return 60 + 480 * at, 230 - 190 * ms / most

    lines = [f'<text x="60" y="20">{title}: p50 in ms by depth</text>']
    lines.extend(
        f'<text x="{place(depth, 0)[0]:.0f}" y="250" text-anchor="middle">{depth:,}</text>' for depth in depths
    )
    lines += [
        f'<text x="50" y="{place(depths[0], ms)[1]:.0f}" text-anchor="end">{ms:.2f}</text>'
        for ms in (0, most / 2, most)
    ]
    for number, (name, line) in enumerate(found.items()):
        dots = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in line)
        lines.append(f'<polyline points="{dots}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
        lines.append(f'<text x="{60 + 160 * number}" y="275" fill="{COLOURS[name]}">{name}</text>')
    body = "\n".join(lines)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="600" height="290" font-family="sans-serif" font-size="12">\n'
        f'<rect width="600" height="290" fill="#fff"/>\n{body}\n</svg>\n'
    )


async def measure(depths: list[int], running: int) -> Costs:
    """Print the tables; the list's costs."""
    plotted: Costs = {}
    limits = QueueLimits(max_pending=10_000_000, lease_ms=600_000)
    print("| transport | depth | submit ms | claim + complete ms | cancel ms |\n|---|---:|---:|---:|---:|")
    passes: dict[str, float] = {}
    for kind, order in ((ListBroker, "arrival"), (SortedSetBroker, "deadline"), (StreamBroker, "lanes")):
        with ValkeyProcess(appendonly="everysec") as server:
            link = Link(CommonSettings(redis_url=Secret(server.url)), name="bench")
            broker = kind(link, "depth", limits._replace(order=order))
            found = await costs(broker, depths)
            for row in zip(*found.values(), strict=True):
                print(
                    f"| {broker.transport} | {row[0][0]:,} | {' | '.join(f'{ms:.2f}' for _, ms in row)} |", flush=True
                )
            plotted = plotted or found
            other = kind(link, "running", limits._replace(order=order))
            passes[broker.transport] = await reaper_pass_ms(other, running)
            await broker.aclose()
            await other.aclose()
            await link.aclose()
    for transport, ms in passes.items():
        print(f"\n{transport}: a reaper has looked at {running:,} running jobs after {ms:,.0f} ms")
    return plotted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--depths", default="1000,10000,100000", help="ascending; 1000000 takes minutes")
    _ = parser.add_argument("--running", type=int, default=10_000)
    _ = parser.add_argument("--svg", type=Path, help="write the list's plot here")
    options = parser.parse_args()
    depths = [int(one) for one in options.depths.split(",")]
    if min(depths) < LEAST_DEPTH or depths != sorted(depths):
        parser.error(f"--depths: ascending, from {LEAST_DEPTH}")
    found = asyncio.run(measure(depths, options.running))
    if options.svg is not None:
        _ = options.svg.write_text(svg(found, "list"), "utf-8")


if __name__ == "__main__":
    main()
