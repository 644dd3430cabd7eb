"""celery, solo pool; see meter.py."""

import time

from celery import Celery
from meter import PAYLOAD, Meter, command, paced, say

what, url, count = command()
meter = Meter(count)
app = Celery("bench", broker=url)
app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False, worker_redirect_stdouts=False)


@app.task(name="job")
def job(payload: str) -> None:
    meter()


if what == "submit":
    began = time.perf_counter()
    for _ in paced(count):
        job.delay(PAYLOAD)
    say(seconds=time.perf_counter() - began)
else:
    app.worker_main(["worker", "--pool", "solo", "--loglevel", "ERROR"])
