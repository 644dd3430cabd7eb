"""rq with its SimpleWorker, which does not fork for each job; see meter.py."""

import sys
import time

sys.modules["driver"] = sys.modules["__main__"]

from meter import PAYLOAD, Meter, command, paced, say  # noqa: E402  the name must stand before rq imports it
from redis import Redis  # noqa: E402
from rq import Queue, SimpleWorker  # noqa: E402

what, url, count = command()
meter = Meter(count)


def job(payload: str) -> None:
    meter()


job.__module__ = "driver"
redis = Redis.from_url(url)
queue = Queue(connection=redis)
if what == "submit":
    began = time.perf_counter()
    for _ in paced(count):
        queue.enqueue(job, PAYLOAD)
    say(seconds=time.perf_counter() - began)
else:
    SimpleWorker([queue], connection=redis).work(logging_level="ERROR")
