"""A pod that is killed mid-job on each of the other transports, and at each stage of a pipeline: as for lists."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from e2e import checkers
from e2e.checkers import recovered_within
from e2e.cluster import Cluster
from e2e.conftest import Judge
from e2e.history import History
from e2e.nemesis import Nemesis
from e2e.workload import Workload
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.docker

FAST_DEATH_SECONDS = 5.0


@pytest.fixture
def model(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def pods(cluster: Cluster, model: str) -> Iterator[None]:
    """Every pod works on this model; of the pipeline the last one on its last stage."""
    stages = {"E2E_MODEL": "chunk", "E2E_LAST_STAGE": "keep"}
    cluster.up(env=stages if model == "ingest" else {"E2E_MODEL": model})
    yield
    cluster.up()


@pytest.fixture
def workload(cluster: Cluster, history: History, pods: None, nemesis: Nemesis, model: str) -> Iterator[Workload]:
    place = "pipelines/ingest" if model == "ingest" else f"jobs/{model}"
    with Workload(cluster, history, place=place, model="") as one:
        yield one


@requirement("e2e:transports:pod-killed")
@pytest.mark.parametrize("model", ["by-deadline", "by-arrival"], indirect=True)
def test_a_pod_killed_mid_job_is_replaced_within_five_seconds(
    workload: Workload, nemesis: Nemesis, judge: Judge
) -> None:
    job_id, pod = workload.running(params={"mock_delay_seconds": 3})
    others = [workload.submit_surely() for _ in range(4)]

    nemesis.kill_pod(pod, job_id=job_id)

    document = workload.until(job_id, "completed", within_seconds=40)
    assert (document["attempts"], document["reaps"]) == (2, 1)
    for other in others:
        _ = workload.until(other, "completed", within_seconds=40)
    judge(partial(recovered_within, limit_seconds=FAST_DEATH_SECONDS), checkers.all_completed)


@requirement("e2e:transports:pod-killed")
@pytest.mark.parametrize("model", ["ingest"], indirect=True)
def test_a_run_outlives_the_pod_of_each_of_its_stages(workload: Workload, nemesis: Nemesis, judge: Judge) -> None:
    job_id, pod = workload.running(params={"mock_delay_seconds": 3})
    assert pod in {1, 2}

    nemesis.kill_pod(pod, job_id=job_id)
    last = workload.at_stage(job_id, "keep", within_seconds=60)
    nemesis.kill_pod(3, job_id=job_id)
    nemesis.heal()

    document = workload.until(job_id, "completed", within_seconds=60)
    assert last["stages"][0]["reaps"] == 1
    assert [(one["stage"], one["status"], one["reaps"]) for one in document["stages"]] == [
        ("chunk", "completed", 1),
        ("keep", "completed", 1),
    ]
    judge(checkers.all_completed)
