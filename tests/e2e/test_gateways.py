"""Gateways hold nothing: killed at any moment, they lose no job, invent none, and tell every verdict."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from e2e import checkers
from e2e.cluster import MODEL, Cluster, eventually
from e2e.conftest import Judge
from e2e.history import History
from e2e.nemesis import Nemesis
from e2e.workload import Workload

pytestmark = pytest.mark.docker

GATEWAYS = (1, 2)
MIB = 1 << 20


def test_a_gateway_killed_during_uploads_loses_nothing_that_it_acknowledged(
    workload: Workload, nemesis: Nemesis, history: History, judge: Judge
) -> None:
    """Between upload and answer, and at every other moment of a submission: unknown answers may come out or not."""
    dice = random.Random(5)
    for round_ in range(6):
        with ThreadPoolExecutor(6) as pool:
            posts = [pool.submit(workload.submit, content=dice.randbytes(4 * MIB)) for _ in range(6)]
            moment = threading.Event()
            _ = moment.wait(dice.uniform(0.02, 0.5))
            nemesis.kill("gateway", index=GATEWAYS[round_ % 2])
            for post in posts:
                _ = post.result(60)
        nemesis.heal()
        _ = eventually(workload.submit, within=30, every=0.2, what="a gateway accepts")

    assert any(op.outcome == "unknown" for op in history.ops), "no kill hit a submission: the test proves nothing"
    judge(checkers.all_completed, within_seconds=120)


def test_jobs_complete_while_every_gateway_is_down_and_every_verdict_is_told_afterwards(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, judge: Judge
) -> None:
    jobs = [workload.submit_surely(params={"mock_delay_seconds": 2}) for _ in range(5)]

    for index in GATEWAYS:
        nemesis.kill("gateway", index=index)

    _ = eventually(
        lambda: all(cluster.record(job_id).get("status") == "completed" for job_id in jobs), within=40, every=0.3
    )
    outbox = cluster.redis("XRANGE", f"relay:{MODEL}:outbox", "-", "+")
    assert [job_id for job_id in jobs if f"{job_id}:1" not in outbox] == [], "one event a verdict waits"
    nemesis.heal()
    for job_id in jobs:
        _ = workload.until(job_id, "completed", within_seconds=60)
    told = partial(told_events, cluster)
    _ = eventually(lambda: {f"{job_id}:1" for job_id in jobs} <= told(), within=30, what="verdicts told")
    judge(checkers.all_completed)


def told_events(cluster: Cluster) -> set[str]:
    """Ids of the events that any gateway says it relayed."""
    found: set[str] = set()
    for container in cluster.containers("gateway"):
        for line in container.logs(tail=2_000).decode("utf-8", "replace").splitlines():
            _, _, after = line.partition('"event_id":"')
            found.add(after.partition('"')[0])
    return found


def test_a_gateway_killed_as_the_verdict_falls_does_not_swallow_its_event(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, judge: Judge
) -> None:
    """The other gateway takes over what the dead one had been given and not acknowledged."""
    jobs: list[str] = []
    for round_ in range(6):
        job_id = workload.submit_surely(params={"mock_delay_seconds": 1})
        jobs.append(job_id)
        _ = workload.until(job_id, "completed", within_seconds=20)
        nemesis.kill("gateway", index=GATEWAYS[round_ % 2])
        nemesis.heal()

    _ = eventually(lambda: cluster.queue_dump()[f"relay:{MODEL}:outbox"] == 0, within=90, every=1)
    judge(checkers.all_completed)
