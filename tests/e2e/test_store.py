"""The S3 server down, slow and busy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e import checkers
from e2e.cluster import Cluster, eventually
from e2e.conftest import Judge
from e2e.history import History, of_kind
from e2e.nemesis import Nemesis
from e2e.workload import Workload

pytestmark = pytest.mark.docker

MIB = 1 << 20


def test_a_store_that_is_down_is_a_503_and_a_running_jobs_result_waits_for_it(
    workload: Workload, nemesis: Nemesis, history: History, judge: Judge
) -> None:
    running, _ = workload.running(params={"mock_delay_seconds": 2})

    nemesis.stop("s3", grace_seconds=2)
    assert workload.submit() is None
    (refusal,) = [op for op in of_kind(history.ops, "submit") if op.outcome == "refused"]
    assert (refusal.http_status, refusal.error_code) == (503, "storage_unavailable")
    nemesis.heal()

    document = workload.until(running, "completed", within_seconds=60)
    assert document["attempts"] == 1
    judge(checkers.all_completed, checkers.only_documented_refusals)


def test_a_slow_store_delays_and_fails_nothing(workload: Workload, nemesis: Nemesis, judge: Judge) -> None:
    nemesis.slow("s3", cpus=0.02)

    with ThreadPoolExecutor(4) as pool:
        posts = [pool.submit(workload.submit, content=bytes(1 * MIB)) for _ in range(8)]
        assert all(post.result(120) for post in posts)

    judge(checkers.all_completed, checkers.only_documented_refusals, within_seconds=180)


def test_a_store_that_says_slow_down_is_asked_again(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, judge: Judge
) -> None:
    """One request at a time is all it takes: every other one is answered 503 SlowDown."""
    cluster.up("s3", "--no-deps", env={"S3_MAX_REQUESTS": "1"})
    try:
        with ThreadPoolExecutor(8) as pool:
            posts = [pool.submit(workload.submit, content=bytes(2 * MIB)) for _ in range(24)]
            accepted = [job_id for post in posts if (job_id := post.result(120))]
        assert accepted
        for job_id in accepted:
            _ = workload.until(job_id, "completed", within_seconds=120)
    finally:
        cluster.up("s3", "--no-deps")
        _ = eventually(workload.submit, within=60, every=0.5, what="the store accepts again")
    judge(checkers.all_completed, checkers.only_documented_refusals, within_seconds=120)
