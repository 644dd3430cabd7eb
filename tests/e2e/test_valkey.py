"""Valkey restarted, frozen, cut off, full: jobs wait, clients are told 503, and nothing is half-made."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from e2e import checkers
from e2e.cluster import LEASE_SECONDS, MODEL, Cluster, eventually
from e2e.conftest import Judge
from e2e.history import History, of_kind
from e2e.nemesis import Nemesis
from e2e.workload import Workload

pytestmark = pytest.mark.docker


def test_restarts_under_load_lose_nothing_and_deafen_nobody(
    workload: Workload, nemesis: Nemesis, history: History, judge: Judge
) -> None:
    workload.start(per_second=1, clients=2, most_open=4, params={"mock_delay_seconds": 0.5})
    for _ in range(3):
        accepted = len(history.acknowledged())
        _ = eventually(lambda more=accepted + 3: len(history.acknowledged()) >= more, within=90)
        nemesis.restart("valkey")
        # Everybody who was connected works again: a job sent now goes all the way.
        fresh = workload.submit_surely(within_seconds=30)
        _ = workload.until(fresh, "completed", within_seconds=240)

    judge(checkers.all_completed, checkers.only_documented_refusals, within_seconds=120)


def test_a_pause_of_twenty_seconds_ends_as_if_nothing_had_been(
    workload: Workload, nemesis: Nemesis, judge: Judge
) -> None:
    """Longer than the lease: a running job may run again, has one verdict, and clients hear 503 meanwhile."""
    running, _ = workload.running(params={"mock_delay_seconds": 5})
    waiting = [workload.submit_surely(params={"mock_delay_seconds": 0.5}) for _ in range(6)]

    nemesis.pause("valkey")
    with ThreadPoolExecutor(4) as pool:
        posts = [pool.submit(workload.submit) for _ in range(4)]
        _ = threading.Event().wait(20)
        nemesis.heal()
        for post in posts:
            _ = post.result(60)

    for job_id in (running, *waiting):
        _ = workload.until(job_id, "completed", within_seconds=90)
    judge(checkers.all_completed, checkers.only_documented_refusals, within_seconds=120)


def test_a_relay_cut_off_from_valkey_alone_loses_its_job_to_another_and_writes_nothing_when_it_is_back(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, judge: Judge
) -> None:
    job_id, pod = workload.running(params={"mock_delay_seconds": 4})

    nemesis.cut_off(f"pod-{pod}", "queue", job_id=job_id)

    document = workload.until(job_id, "completed", within_seconds=LEASE_SECONDS + 40)
    assert document["attempts"] == 2
    winner = cluster.record(job_id)
    nemesis.heal()
    for _ in range(6):
        _ = workload.until(workload.submit_surely(), "completed", within_seconds=60)
    assert cluster.record(job_id) == winner
    judge(partial(checkers.recovered_within, limit_seconds=LEASE_SECONDS + 7), checkers.all_completed)


def test_a_full_memory_refuses_submissions_with_503_and_leaves_nothing_half_made(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, history: History, judge: Judge
) -> None:
    running, _ = workload.running(params={"mock_delay_seconds": 3})
    before = records(cluster)
    nemesis.fill()

    for _ in range(5):
        assert workload.submit() is None
    refusals = [op for op in of_kind(history.ops, "submit") if op.outcome == "refused"]
    assert [op.http_status for op in refusals] == [503] * 5
    assert records(cluster) == before
    assert cluster.redis("LLEN", f"relay:{MODEL}:pending") == "0"

    # A verdict frees before it takes, so what runs ends all the same, or waits for memory.
    nemesis.heal()
    document = workload.until(running, "completed", within_seconds=60)
    assert document["attempts"] == 1
    judge(checkers.all_completed, checkers.only_documented_refusals)


def records(cluster: Cluster) -> list[str]:
    """Keys of jobs and reservations, tombstones apart."""
    return [key for key in cluster.keys("*") if key.startswith(("job:", "idem:")) and not key.endswith(":gone")]
