"""dramatiq, one process of eight threads (its default); see meter.py."""

import threading
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from meter import PAYLOAD, Meter, command, paced, say

what, url, count = command()
meter = Meter(count)
lock = threading.Lock()
broker = RedisBroker(url=url)
dramatiq.set_broker(broker)


@dramatiq.actor
def job(payload: str) -> None:
    with lock:
        meter()


if what == "submit":
    began = time.perf_counter()
    for _ in paced(count):
        job.send(PAYLOAD)
    say(seconds=time.perf_counter() - began)
else:
    dramatiq.Worker(broker, worker_threads=8).start()
    threading.Event().wait()
