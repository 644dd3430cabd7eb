"""Whatever dies in a pod, and however: the job is finished once, somewhere, and soon."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from e2e import checkers
from e2e.checkers import recovered_within
from e2e.cluster import ARTIFACTS, LEASE_SECONDS, MODEL, Cluster, eventually
from e2e.conftest import RUNS_ALLOWED, Judge
from e2e.history import History
from e2e.nemesis import Nemesis
from e2e.workload import Workload

pytestmark = pytest.mark.docker

FAST_DEATH_SECONDS = 5.0
FROZEN_SECONDS = LEASE_SECONDS + 7.0


def report(name: str, history: History) -> None:
    """Keep the recovery times of this run, for the table of measurements."""
    path: Path = ARTIFACTS / "recovery.json"
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    known[name] = sorted(checkers.recovery_seconds(history.ops).values())
    _ = path.write_text(json.dumps(known, indent=2), "utf-8")


@pytest.mark.parametrize("round_", range(3))
def test_a_pod_killed_mid_job_is_replaced_within_five_seconds(
    workload: Workload, nemesis: Nemesis, history: History, judge: Judge, round_: int
) -> None:
    job_id, pod = workload.running(params={"mock_delay_seconds": 3})

    nemesis.kill_pod(pod, job_id=job_id)

    document = workload.until(job_id, "completed", within_seconds=30)
    assert (document["attempts"], document["reaps"]) == (2, 1)
    report(f"pod killed {round_}", history)
    judge(partial(recovered_within, limit_seconds=FAST_DEATH_SECONDS), checkers.all_completed)


def test_a_killed_relay_beside_a_living_model_is_replaced_within_five_seconds(
    workload: Workload, nemesis: Nemesis, history: History, judge: Judge
) -> None:
    job_id, pod = workload.running(params={"mock_delay_seconds": 3})

    nemesis.kill(f"relay-{pod}", job_id=job_id)

    _ = workload.until(job_id, "completed", within_seconds=30)
    report("relay killed", history)
    judge(partial(recovered_within, limit_seconds=FAST_DEATH_SECONDS), checkers.all_completed)


def test_a_frozen_relay_loses_its_job_after_its_lease_and_writes_nothing_when_it_thaws(
    workload: Workload, nemesis: Nemesis, history: History, cluster: Cluster, judge: Judge
) -> None:
    job_id, pod = workload.running(params={"mock_delay_seconds": 3})

    nemesis.pause(f"relay-{pod}", job_id=job_id)

    document = workload.until(job_id, "completed", within_seconds=FROZEN_SECONDS + 15)
    report("relay frozen", history)
    winner = cluster.record(job_id)
    nemesis.heal()
    # The thawed relay finds its claim lost and the supervisor starts the next one, which takes a job again.
    for _ in range(6):
        _ = workload.until(workload.submit_surely(), "completed", within_seconds=20)
    assert cluster.record(job_id) == winner
    assert document["attempts"] == 2
    judge(partial(recovered_within, limit_seconds=FROZEN_SECONDS), checkers.all_completed)


def test_a_job_that_kills_every_relay_becomes_a_dead_letter_with_its_event(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, judge: Judge
) -> None:
    job_id, pod = workload.running(params={"mock_delay_seconds": 60})
    for deaths in range(1, RUNS_ALLOWED + 1):
        if deaths == RUNS_ALLOWED:  # nobody takes the event away before it was seen
            for index in (1, 2):
                nemesis.kill("gateway", index=index)
        nemesis.kill(f"relay-{pod}", job_id=job_id)
        nemesis.heal(f"relay-{pod}")
        if deaths < RUNS_ALLOWED:
            _ = workload.until(job_id, "processing", attempts=deaths + 1, within_seconds=20)
            pod = eventually(partial(cluster.pod_of, job_id), within=20, what="the job's pod")

    _ = eventually(lambda: cluster.record(job_id)["status"] == "failed", within=20, every=0.2, what="failed")
    assert cluster.record(job_id)["error_code"] == "worker_lost"
    assert job_id in cluster.redis("LRANGE", f"relay:{MODEL}:deadletter", "0", "-1")
    assert f"{job_id}:1" in cluster.redis("XRANGE", f"relay:{MODEL}:outbox", "-", "+")
    nemesis.heal()
    document = workload.until(job_id, "failed", within_seconds=60)
    assert document["error"]["code"] == "worker_lost"
    assert document["attempts"] == RUNS_ALLOWED
    # The relays that it killed work on.
    for _ in range(3):
        _ = workload.until(workload.submit_surely(), "completed", within_seconds=60)
    judge()


def test_a_killed_model_fails_its_job_in_words_and_takes_no_other(
    workload: Workload, nemesis: Nemesis, judge: Judge
) -> None:
    job_id, pod = workload.running(params={"mock_delay_seconds": 20})

    nemesis.kill(f"model-{pod}", job_id=job_id)

    document = workload.until(job_id, "failed", within_seconds=20)
    assert document["error"]["code"] == "inference_error"
    assert document["attempts"] == 1
    # Its relay waits for the model before it claims again; the other pods go on.
    for _ in range(3):
        _ = workload.until(workload.submit_surely(), "completed", within_seconds=20)
    judge()


def test_a_relay_and_a_model_out_of_memory_cost_one_attempt(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, judge: Judge
) -> None:
    job_id, pod = workload.running(params={"mock_delay_seconds": 5})

    nemesis.out_of_memory(f"relay-{pod}", job_id=job_id)
    nemesis.out_of_memory(f"model-{pod}")

    document = workload.until(job_id, "completed", within_seconds=60)
    assert document["attempts"] == 2
    for part in ("relay", "model"):
        assert cluster.container(f"{part}-{pod}").attrs["RestartCount"] > 0, part
    judge(checkers.all_completed)


def test_a_relay_that_is_told_to_stop_finishes_a_job_that_fits_its_drain(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, judge: Judge
) -> None:
    job_id, pod = workload.running(params={"mock_delay_seconds": 3})

    nemesis.stop(f"relay-{pod}")

    document = workload.until(job_id, "completed", within_seconds=5)
    assert document["attempts"] == 1
    assert cluster.container(f"relay-{pod}").attrs["State"]["ExitCode"] == 0
    judge(checkers.all_completed)


def test_a_relay_that_is_told_to_stop_gives_back_a_job_that_does_not_fit_its_drain(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, judge: Judge
) -> None:
    job_id, pod = workload.running(params={"mock_delay_seconds": 12})

    nemesis.stop(f"relay-{pod}")

    assert cluster.container(f"relay-{pod}").attrs["State"]["ExitCode"] == 0
    document = workload.until(job_id, "completed", within_seconds=30)
    assert (document["attempts"], document["reaps"]) == (2, 0), "given back, not reaped"
    judge(checkers.all_completed)
