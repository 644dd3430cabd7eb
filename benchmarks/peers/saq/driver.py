"""saq; see meter.py."""

import asyncio

from meter import PAYLOAD, WIDTH, Meter, command, send
from saq import Queue, Worker

what, url, count = command()
meter = Meter(count)


async def job(ctx: object, *, payload: str) -> None:
    meter()


async def main() -> None:
    queue = Queue.from_url(url)
    if what == "submit":
        await send(count, lambda _: queue.enqueue("job", payload=PAYLOAD))
    else:
        await Worker(queue, functions=[job], concurrency=WIDTH).start()


asyncio.run(main())
