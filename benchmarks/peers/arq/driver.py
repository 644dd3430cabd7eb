"""arq; see meter.py."""

import asyncio

from arq import Worker, create_pool
from arq.connections import RedisSettings
from meter import PAYLOAD, WIDTH, Meter, command, send

what, url, count = command()
meter = Meter(count)


async def job(ctx: object, payload: str) -> None:
    meter()


async def submit() -> None:
    pool = await create_pool(RedisSettings.from_dsn(url))
    await send(count, lambda _: pool.enqueue_job("job", PAYLOAD))


if what == "submit":
    asyncio.run(submit())
else:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    Worker([job], redis_settings=RedisSettings.from_dsn(url), max_jobs=WIDTH).run()
