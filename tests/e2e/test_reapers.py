"""Reapers: any number of them, none of them needed for long, and none of them harmful when cut off."""

from __future__ import annotations

from functools import partial

import pytest

from e2e import checkers
from e2e.checkers import recovered_within
from e2e.cluster import LEASE_SECONDS, Cluster
from e2e.conftest import Judge
from e2e.nemesis import Nemesis
from e2e.workload import Workload

pytestmark = pytest.mark.docker


def test_two_reapers_give_a_dead_relays_job_away_once(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, judge: Judge
) -> None:
    for _ in range(3):
        job_id, pod = workload.running(params={"mock_delay_seconds": 2})
        nemesis.kill(f"relay-{pod}", job_id=job_id)
        document = workload.until(job_id, "completed", within_seconds=30)
        nemesis.heal()
        assert (document["attempts"], document["reaps"]) == (2, 1)

    judge(partial(recovered_within, limit_seconds=5), checkers.all_completed)


def test_with_one_reaper_killed_the_other_recovers_jobs_as_fast(
    workload: Workload, nemesis: Nemesis, judge: Judge
) -> None:
    nemesis.kill("reaper", index=1)
    job_id, pod = workload.running(params={"mock_delay_seconds": 2})

    nemesis.kill(f"relay-{pod}", job_id=job_id)

    _ = workload.until(job_id, "completed", within_seconds=30)
    judge(partial(recovered_within, limit_seconds=5), checkers.all_completed)


def test_a_relay_that_dies_while_no_reaper_lives_is_recovered_by_the_next_one(
    workload: Workload, nemesis: Nemesis, judge: Judge
) -> None:
    job_id, pod = workload.running(params={"mock_delay_seconds": 2})
    for index in (1, 2):
        nemesis.kill("reaper", index=index)
    nemesis.kill(f"relay-{pod}", job_id=job_id)

    nemesis.heal("reaper")

    # A reaper that has just come up trusts nothing it did not see: the lease decides.
    document = workload.until(job_id, "completed", within_seconds=LEASE_SECONDS + 30)
    assert document["attempts"] == 2
    judge(checkers.all_completed)


def test_a_reaper_that_is_cut_off_reaps_nothing_and_works_again_afterwards(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, judge: Judge
) -> None:
    nemesis.kill("reaper", index=2)
    job_id, _ = workload.running(params={"mock_delay_seconds": LEASE_SECONDS + 5})
    nemesis.cut_off("reaper", "queue", index=1)

    # Its owner lives and renews; a reaper that cannot see that must not act when it is back.
    document = workload.until(job_id, "completed", within_seconds=LEASE_SECONDS + 20)
    assert (document["attempts"], document["reaps"]) == (1, 0)
    nemesis.heal("queue")
    job_id, pod = workload.running(params={"mock_delay_seconds": 2})
    nemesis.kill(f"relay-{pod}", job_id=job_id)

    _ = workload.until(job_id, "completed", within_seconds=3 * LEASE_SECONDS + 30)
    judge(checkers.all_completed)
