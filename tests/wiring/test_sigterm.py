"""SIGTERM of an idle relay in the instant a job is pushed (case A2): never lost, never late, never run twice."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio
import pytest

from queuecore.job import Status
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock, Process, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]

ROUNDS: Final = 200
LANES: Final = 4


async def terminated_at_the_push(relay: Process, push: Callable[[], Awaitable[object]], moment: int) -> None:
    """The signal goes out just before the push (moments 0 and 1), with it, or up to 2.4 ms after it."""
    if moment < 2:
        relay.signal(signal.SIGTERM)
        _ = await push()
    else:
        _ = asyncio.get_running_loop().call_later((moment - 2) * 0.0003, relay.signal, signal.SIGTERM)
        _ = await push()
    assert await relay.ended(15) == 0, relay.log.read_text("utf-8")


@pytest.mark.timeout(600)
@requirement("sigterm:claim:no-job-stranded", "relay:exit:code-says-what-happened")
async def test_a_job_pushed_in_the_instant_of_sigterm_is_neither_lost_nor_late_200_rounds(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    yards = [Yard(valkey, mock, tmp_path / f"lane{number}", model=f"lane{number}") for number in range(LANES)]
    await yards[0].flush()
    seen = max((request["id"] for request in await mock.requests()), default=0)
    jobs: list[str] = []
    outcomes: Counter[str] = Counter()

    async def lane(yard: Yard) -> None:
        left: str | None = None  # what the last relay did not take or gave back
        for number in range(ROUNDS // LANES + 1):
            relay = await yard.relay(RELAY_MAX_JOBS="0", RELAY_QUEUE_POP_TIMEOUT_SECONDS="60")
            await yard.idle(relay)
            if left is not None:  # done before this one was idle: it waited for no lease and for no reaper
                record = await yard.status(left)
                assert (record.status, record.reaps) == (Status.COMPLETED, 0), record
            if number == ROUNDS // LANES:
                break
            job = await yard.prepare(b"a job")
            jobs.append(job.id)
            await terminated_at_the_push(relay, lambda job=job: yard.broker.submit(job), number % 10)
            record = await yard.status(job.id)
            outcomes[record.status] += 1
            left = None if record.terminal else job.id
            assert (await yard.operator.places()).pending == ([left] if left else [])
            assert (await yard.operator.places()).processing == []
        assert await yard.operator.residue() == []
        await yard.aclose()

    async with anyio.create_task_group() as group:
        for yard in yards:
            group.start_soon(lane, yard)
    assert len(jobs) == ROUNDS
    assert await mock.runs(after=seen) == Counter(dict.fromkeys(jobs, 1))
    tell(f"of {ROUNDS} jobs {outcomes['completed']} were finished by the relay that was told to end")
    assert min(outcomes["completed"], outcomes["pending"]) >= ROUNDS // 20, "the race was not there"
