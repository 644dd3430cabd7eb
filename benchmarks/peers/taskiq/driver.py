"""taskiq on a Redis stream; see meter.py."""

import asyncio

from meter import PAYLOAD, WIDTH, Meter, command, send
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

what, url, count = command()
meter = Meter(count)
broker = RedisStreamBroker(url=url)


@broker.task
async def job(payload: str) -> None:
    meter()


async def main() -> None:
    await broker.startup()
    if what == "submit":
        await send(count, lambda _: job.kiq(PAYLOAD))
    else:
        broker.is_worker_process = True
        await run_receiver_task(broker, max_async_tasks=WIDTH)


asyncio.run(main())
