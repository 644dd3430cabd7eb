"""relayq's broker, ten claims at a time in one process, every guarantee on; see meter.py. URL may end in #transport."""

import asyncio

from meter import PAYLOAD, WIDTH, Meter, command, send

from queuecore.broker import NewJob, QueueLimits, Result, Worker
from queuecore.names import new_job_id
from queuecore.redis.client import Link
from queuecore.redis.list_transport import ListBroker
from queuecore.redis.sortedset_transport import SortedSetBroker
from queuecore.redis.stream_transport import StreamBroker
from queuecore.settings import CommonSettings, Secret

what, where, count = command()
url, _, transport = where.partition("#")
meter = Meter(count)
RESULT = Result("k/output", 1, "text/plain", "0" * 64)
LIMITS = QueueLimits(max_pending=10_000_000)
KINDS = {
    "list": (ListBroker, LIMITS),
    "sortedset": (SortedSetBroker, LIMITS._replace(order="deadline")),
    "stream": (StreamBroker, LIMITS._replace(order="lanes")),
}
KIND, KIND_LIMITS = KINDS[transport or "list"]
FIELDS = {
    "tenant": "", "service_type": "echo", "operation": "echo", "request": "raw", "inference_url": "/echo",
    "input_size": "200", "input_sha256": "0" * 64, "input_filename": "file", "input_content_type": "text/plain",
    "params": PAYLOAD,
}  # fmt: skip
PRIORITY = "false" if KIND is ListBroker else "normal"


def new_job() -> NewJob:
    job_id = new_job_id()
    return NewJob(id=job_id, fields=FIELDS | {"input_key": f"{job_id}/input"}, priority=PRIORITY)


async def lane(number: int) -> None:
    broker = KIND(Link(CommonSettings(redis_url=Secret(url)), name="bench"), "bench", KIND_LIMITS)
    serial = 0
    while True:
        serial += 1
        claim = await broker.claim(Worker(f"w{number}"), f"c{number}-{serial}", wait_seconds=None)
        assert claim is not None
        meter.starts()
        _ = await broker.complete(claim, RESULT)
        meter()


async def main() -> None:
    if what == "submit":
        broker = KIND(Link(CommonSettings(redis_url=Secret(url)), name="bench"), "bench", KIND_LIMITS)
        await send(count, lambda _: broker.submit(new_job()))
    else:
        _ = await asyncio.gather(*(lane(number) for number in range(WIDTH)))


asyncio.run(main())
