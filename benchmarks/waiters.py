"""One gateway with a thousand event streams and a thousand long polls on one job: when they are told, what each costs.

All on this machine: the clients take their share of the same cores.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path

import httpx

from queuecore.broker import Result, Worker
from queuecore.clock import monotonic
from queuecore.names import new_claim_id
from queuecore.testing.crowd import open_waits, told
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock, Yard

EACH = 1_000
ROUNDS = 5


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def measured(yard: Yard) -> tuple[float, float, float, float]:
    """(p50 ms, p99 ms, last ms, bytes a waiter) of one verdict, on a gateway of its own."""
    gateway = await yard.gateway()
    job_id = await yard.submit()
    claim = await yard.broker.claim(Worker("w"), new_claim_id())
    assert claim is not None
    path = f"/jobs/echo/{job_id}"
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        etag = (await http.get(path)).headers["etag"]
    before = resident_bytes(gateway.pid)
    waits = await open_waits(int(gateway.url.rpartition(":")[2]), path, etag, streams=EACH, polls=EACH)
    each = (resident_bytes(gateway.pid) - before) / (2 * EACH)
    _ = await yard.broker.complete(claim, Result("nowhere", 1, "text/plain", "00"))
    verdict = monotonic()
    moments = [1000 * (moment - verdict) for moment in await told(waits)]
    return moments[len(moments) // 2], moments[-len(moments) // 100], moments[-1], each


async def main() -> None:
    with ValkeyProcess() as server, Mock() as mock, tempfile.TemporaryDirectory() as directory:
        yard = Yard(server, mock, Path(directory))
        rounds = [await measured(yard) for _ in range(ROUNDS)]
        await yard.aclose()
    p50, p99, last, each = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"| {EACH:,} event streams + {EACH:,} long polls, one gateway, median of {ROUNDS} | |")
    print("|---|---:|")
    print(f"| told after the verdict, p50 ms | {p50:.0f} |")
    print(f"| p99 ms | {p99:.0f} |")
    print(f"| the last one ms | {last:.0f} |")
    print(f"| KB of memory a waiter | {each / 1024:.1f} |")


if __name__ == "__main__":
    asyncio.run(main())
