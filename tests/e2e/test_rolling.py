"""Every service replaced under load: no job fails, and no request beyond the documented 503s."""

from __future__ import annotations

import pytest

from e2e import checkers
from e2e.cluster import PODS, Cluster, eventually
from e2e.conftest import Judge
from e2e.history import History
from e2e.nemesis import Nemesis
from e2e.workload import Workload

pytestmark = pytest.mark.docker


def replace(cluster: Cluster, history: History, service: str, index: int = 1) -> None:
    """Stop one replica with its grace time, remove it, and bring up a new one in its place."""
    container = cluster.container(service, index)
    _ = history.add("fault", target=str(container.name), detail="replace")
    container.stop(timeout=60)
    container.remove()
    cluster.up("--no-recreate")


def test_rolling_replacement_of_every_service_under_load(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, history: History, judge: Judge
) -> None:
    workload.start(per_second=2, clients=3, most_open=8, params={"mock_delay_seconds": 0.5})
    _ = eventually(lambda: len(history.acknowledged()) > 5, within=90)

    # Newest first: the replica that takes its name's place is always the last one.
    for service in ("gateway", "reaper"):
        for _ in range(2):
            replace(cluster, history, service, index=1)
    for pod in PODS:  # the relay drains before its model goes
        nemesis.stop(f"relay-{pod}")
        replace(cluster, history, f"model-{pod}")
        nemesis.heal(f"relay-{pod}")
        replace(cluster, history, f"relay-{pod}")
    nemesis.restart("valkey")
    nemesis.restart("s3")

    accepted = len(history.acknowledged())
    _ = eventually(lambda: len(history.acknowledged()) > accepted + 5, within=90, what="the load goes on")
    judge(checkers.all_completed, checkers.only_documented_refusals, within_seconds=400)
