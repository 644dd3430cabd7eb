"""BullMQ's Python package; see meter.py."""

import asyncio

from bullmq import Queue, Worker
from meter import PAYLOAD, WIDTH, Meter, command, send

what, url, count = command()
meter = Meter(count)


async def job(_job: object, _token: str) -> None:
    meter()


async def main() -> None:
    if what == "submit":
        queue = Queue("bench", {"connection": url})
        await send(count, lambda _: queue.add("job", {"payload": PAYLOAD}))
        await queue.close()
    else:
        _ = Worker("bench", job, {"connection": url, "concurrency": WIDTH})
        await asyncio.Event().wait()


asyncio.run(main())
