"""streaq; see meter.py."""

import anyio
from meter import PAYLOAD, WIDTH, Meter, command, send
from streaq import Worker

what, url, count = command()
meter = Meter(count)
worker = Worker(redis_url=url, concurrency=WIDTH)


@worker.task
async def job(payload: str) -> None:
    meter()


async def submit() -> None:
    async with worker:
        await send(count, lambda _: enqueue())


async def enqueue() -> None:
    _ = await job.enqueue(PAYLOAD)


if what == "submit":
    anyio.run(submit)
else:
    worker.run_sync()
