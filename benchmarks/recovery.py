"""From SIGKILL of a relay in the middle of its job to the moment another relay's model is asked: five rounds.

A real reaper and two relays on one Valkey. The reaper hears of the dead connection; nobody waits for the lease.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import tempfile
from pathlib import Path
from typing import Final

from queuecore.clock import monotonic
from queuecore.config import Transport
from queuecore.testing.clock import eventually
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock, Yard

ROUNDS: Final = 5
TRANSPORTS: Final[tuple[Transport, ...]] = ("list", "sortedset", "stream")


async def asked(yard: Yard, job_id: str, times: int) -> None:
    async def look() -> bool:
        return (await yard.mock.runs())[job_id] == times

    assert await eventually(look, within=30, every=0.01)


async def seconds(yard: Yard, number: int) -> float:
    """One round; the first run of its content hangs."""
    job_id = await yard.submit(b"%d" % number, mock_hang=True, mock_times=1)
    victim = await yard.relay()
    await asked(yard, job_id, 1)
    other = await yard.relay(RELAY_QUEUE_POP_TIMEOUT_SECONDS="60")
    _ = await other.said("service.started")
    victim.signal(signal.SIGKILL)
    began = monotonic()
    await asked(yard, job_id, 2)
    took = monotonic() - began
    assert await other.ended() == 0
    return took


async def main() -> None:
    print("| SIGKILL to running again, s | median | slowest |")
    print("|---|---:|---:|")
    for transport in TRANSPORTS:
        with ValkeyProcess() as server, Mock() as mock, tempfile.TemporaryDirectory() as directory:
            yard = Yard(server, mock, Path(directory), transport=transport)
            _ = await yard.ready_reaper()
            took = [await seconds(yard, number) for number in range(ROUNDS)]
            print(f"| {transport} | {statistics.median(took):.2f} | {max(took):.2f} |", flush=True)
            await yard.aclose()


if __name__ == "__main__":
    asyncio.run(main())
