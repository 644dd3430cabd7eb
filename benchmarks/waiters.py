"""One gateway with a thousand event streams and a thousand long polls on one job: when they are told, what each costs.

All on this machine: the clients take their share of the same cores.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path

from queuecore.testing.crowd import crowd
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock, Yard

EACH = 1_000
ROUNDS = 5


async def main() -> None:
    with ValkeyProcess() as server, Mock() as mock, tempfile.TemporaryDirectory() as directory:
        yard = Yard(server, mock, Path(directory))
        rounds = [await crowd(yard, streams=EACH, polls=EACH) for _ in range(ROUNDS)]
        await yard.aclose()
    p50, p99, last = (1000 * statistics.median(told.seconds[at] for told in rounds) for at in (EACH, -EACH // 50, -1))
    print(f"| {EACH:,} event streams + {EACH:,} long polls, one gateway, median of {ROUNDS} | |")
    print("|---|---:|")
    print(f"| told after the verdict, p50 ms | {p50:.0f} |")
    print(f"| p99 ms | {p99:.0f} |")
    print(f"| the last one ms | {last:.0f} |")
    print(f"| KB of memory a waiter | {statistics.median(told.bytes_each for told in rounds) / 1024:.1f} |")


if __name__ == "__main__":
    asyncio.run(main())
