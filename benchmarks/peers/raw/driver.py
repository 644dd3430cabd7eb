"""Plain redis-py: RPUSH; BLMOVE, SET PX and a Lua completion a job, which guarantee nothing more; see meter.py."""

import asyncio

from meter import PAYLOAD, WIDTH, Meter, command, send
from redis.asyncio import Redis

what, url, count = command()
meter = Meter(count)
DONE = "redis.call('LREM', KEYS[1], 1, ARGV[1]) redis.call('DEL', KEYS[2]) return 1"


async def lane() -> None:
    redis = Redis.from_url(url, decode_responses=True, socket_timeout=None)
    done = redis.register_script(DONE)
    while True:
        job = await redis.blmove("pending", "processing", 0, "LEFT", "RIGHT")
        meter.starts()
        lease = f"lease:{job[:20]}"
        await redis.set(lease, "1", px=60_000)
        await done(keys=["processing", lease], args=[job])
        meter()


async def main() -> None:
    if what == "submit":
        clients = [Redis.from_url(url, socket_timeout=None) for _ in range(WIDTH)]
        await send(count, lambda n: clients[n % WIDTH].rpush("pending", f"{n:020}{PAYLOAD}"))
    else:
        await asyncio.gather(*(lane() for _ in range(WIDTH)))


asyncio.run(main())
