"""What a job costs in counts, which no machine's mood moves: round trips, commands in Redis, bytes while it waits.

The ceilings are what was measured, a little above: a change that raises one is seen here and says why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from queuecore.broker import Broker, NewJob, QueueLimits, Result, Worker
from queuecore.names import new_job_id
from queuecore.redis.broker import RedisBroker
from queuecore.redis.client import Link
from queuecore.redis.list_transport import ListBroker
from queuecore.redis.sortedset_transport import SortedSetBroker
from queuecore.redis.stream_transport import StreamBroker
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.servers import ValkeyProcess

pytestmark = pytest.mark.anyio
JOBS = 200
RESULT = Result("k/output", 1, "text/plain", "0" * 64)
FIELDS = {
    "tenant": "acme", "service_type": "transcription", "operation": "transcribe", "request": "multipart",
    "inference_url": "/v1/audio/transcriptions", "input_size": "1048576", "input_sha256": "0" * 64,
    "input_filename": "talk.wav", "input_content_type": "audio/wav", "params": '{"language":"en","temperature":0}',
}  # fmt: skip


class Ceiling(NamedTuple):
    """Per job, over submit, claim and complete."""

    round_trips: float
    commands: float
    bytes_waiting: float


CEILINGS = {
    "list": Ceiling(4.1, 50, 1_100),  # measured 4 round trips, 49 commands, 868 bytes
    "sortedset": Ceiling(4.1, 64, 1_200),  # 4, 63, 972
    "stream": Ceiling(5.1, 89, 1_200),  # 5, 88, 970; two of them ask whether a pause is still being made
}


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as made:
        yield made


@pytest.fixture(params=sorted(CEILINGS))
async def broker(request: pytest.FixtureRequest, server: ValkeyProcess) -> AsyncIterator[RedisBroker]:
    link = Link(CommonSettings(redis_url=Secret(server.url)), name="cost")
    _ = await link.call("FLUSHALL")
    limits = QueueLimits()
    made: dict[str, RedisBroker] = {
        "list": ListBroker(link, "cost", limits),
        "sortedset": SortedSetBroker(link, "cost", limits._replace(order="deadline")),
        "stream": StreamBroker(link, "cost", limits._replace(order="lanes")),
    }
    yield made[request.param]
    await made[request.param].aclose()
    await link.aclose()


def new_job(broker: RedisBroker) -> NewJob:
    job_id = new_job_id()
    priority = "false" if broker.transport == "list" else "normal"
    return NewJob(id=job_id, fields=FIELDS | {"input_key": f"{job_id}/input"}, priority=priority)


async def work(broker: Broker, number: int) -> None:
    claim = await broker.claim(Worker("w"), f"c{number}", wait_seconds=0)
    assert claim is not None
    _ = await broker.complete(claim, RESULT)


async def info(link: Link, section: str) -> dict[str, str]:
    text = str(await link.call("INFO", section))
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


async def test_a_job_costs_no_more_round_trips_commands_and_bytes_than_it_did(broker: RedisBroker) -> None:
    link = broker._link
    _ = await broker.submit(new_job(broker))
    await work(broker, -1)  # scripts are loaded, groups are there
    before, held = await info(link, "stats"), await info(link, "memory")
    for _ in range(JOBS):
        _ = await broker.submit(new_job(broker))
    waiting = await info(link, "memory")
    for number in range(JOBS):
        await work(broker, number)
    after = await info(link, "stats")
    ceiling = CEILINGS[broker.transport]
    reads = (int(after["total_reads_processed"]) - int(before["total_reads_processed"])) / JOBS
    commands = (int(after["total_commands_processed"]) - int(before["total_commands_processed"])) / JOBS
    taken = (int(waiting["used_memory"]) - int(held["used_memory"])) / JOBS
    found = Ceiling(reads, commands, taken)
    assert all(one <= most for one, most in zip(found, ceiling, strict=True)), f"{found} is over {ceiling}"
