"""huey, one thread; see meter.py."""

import time

from huey import RedisHuey
from meter import PAYLOAD, Meter, command, paced, say

what, url, count = command()
meter = Meter(count)
huey = RedisHuey("bench", url=url, results=False)


@huey.task()
def job(payload: str) -> None:
    meter()


if what == "submit":
    began = time.perf_counter()
    for _ in paced(count):
        job(PAYLOAD)
    say(seconds=time.perf_counter() - began)
else:
    huey.create_consumer(workers=1, periodic=False).run()
