"""Reads that many ask for at once: one round trip, and never one that began before the question (case K2)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from gateway.gathered import Gathered
from queuecore.broker import NewJob
from queuecore.errors import BrokerUnavailable, JobNotFound
from queuecore.job import JobRecord
from queuecore.testing.clock import ManualClock
from queuecore.testing.memory import MemoryQueue, MemoryServer
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


class Slow(MemoryServer):
    """Reads when it is asked, and answers when it may."""

    def __init__(self, queue: MemoryQueue) -> None:
        super().__init__(queue)
        self.asked: list[list[str]] = []
        self.go_on = asyncio.Event()
        self.fault: Exception | None = None

    async def records(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        self.asked.append(list(job_ids))
        found = await super().records(job_ids)
        _ = await self.go_on.wait()
        if self.fault:
            raise self.fault
        return found


@pytest.fixture
async def queue() -> MemoryQueue:
    queue = MemoryQueue(ManualClock())
    for name in ("a", "b"):
        _ = await queue.broker("m").submit(NewJob(id=name, fields={}))
    return queue


async def started(tasks: int) -> None:
    for _ in range(tasks):
        await asyncio.sleep(0)


@requirement("wait:any:no-verdict-missed-between-read-and-wait")
async def test_who_asks_after_a_read_began_is_answered_by_another(queue: MemoryQueue) -> None:
    server = Slow(queue)
    gathered = Gathered(server, queue.broker("m"))
    early = [asyncio.create_task(gathered.get("a")) for _ in range(3)]
    await started(5)
    _ = await queue.broker("m").cancel("a")
    late = [asyncio.create_task(gathered.get(name)) for name in ("a", "b", "a")]
    await started(5)
    server.go_on.set()

    assert {record.status for record in await asyncio.gather(*early)} == {"pending"}
    assert [record.status for record in await asyncio.gather(*late)] == ["cancelled", "pending", "cancelled"]
    assert server.asked == [["a"], ["a", "b"]]


@pytest.mark.parametrize("fault", [BrokerUnavailable("gone"), ZeroDivisionError()])
async def test_what_is_not_there_and_what_goes_wrong_is_told_to_everybody(queue: MemoryQueue, fault: Exception) -> None:
    server = Slow(queue)
    server.go_on.set()
    gathered = Gathered(server, queue.broker("m"))
    with pytest.raises(JobNotFound):
        _ = await gathered.get("nobody")
    server.fault = fault

    ends = await asyncio.gather(*(gathered.get("a") for _ in range(3)), return_exceptions=True)

    assert ends == [fault] * 3


async def test_a_client_that_goes_away_takes_nobody_with_it(queue: MemoryQueue) -> None:
    server = Slow(queue)
    gathered = Gathered(server, queue.broker("m"))
    gone, stays = asyncio.create_task(gathered.get("a")), asyncio.create_task(gathered.get("a"))
    await started(5)
    _ = gone.cancel()
    server.go_on.set()

    assert (await stays).id == "a"
