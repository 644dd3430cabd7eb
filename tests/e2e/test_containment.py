"""What a container may do: not be root, not write its file system, not be reached, and end when told to."""

from __future__ import annotations

import time
from typing import Any

import pytest

from e2e.cluster import Cluster, eventually
from e2e.conftest import Judge
from e2e.nemesis import Nemesis
from e2e.workload import Workload

pytestmark = pytest.mark.docker

OURS = ("gateway", "reaper", "relay-1", "model-1", "pod-1")
EVERY = (*OURS, "edge", "valkey", "s3")


@pytest.mark.parametrize("service", EVERY)
def test_no_process_of_a_container_is_root_or_has_a_capability(cluster: Cluster, service: str) -> None:
    status = cluster.run(service, "cat", "/proc/1/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)

    assert "0" not in fields["Uid"].split(), fields["Uid"]
    assert "0" not in fields["Gid"].split(), fields["Gid"]
    assert int(fields["CapEff"], 16) == 0
    assert int(fields["CapBnd"], 16) == 0
    assert fields["NoNewPrivs"] == "1"
    processes = cluster.container(service).top(ps_args="-eo uid,pid")["Processes"]
    assert [process for process in processes if process[0] == "0"] == []


@pytest.mark.parametrize("service", EVERY)
def test_no_container_can_write_its_root_file_system(cluster: Cluster, service: str) -> None:
    for path in ("/probe", "/tmp/probe", "/etc/probe", "/opt/probe", "/usr/local/bin/probe"):
        code, output = cluster.container(service).exec_run(["sh", "-c", f"echo x > {path}"], user="0")
        assert code != 0, f"{service} could write {path}: {output}"
        assert b"Read-only file system" in output or b"No such file" in output, output


def test_nothing_listens_beyond_the_loopback(cluster: Cluster) -> None:
    published: list[tuple[str, str]] = []
    for container in cluster.containers():
        bindings: dict[str, Any] = container.attrs["HostConfig"]["PortBindings"] or {}
        published += [(str(container.name), one["HostIp"]) for ports in bindings.values() for one in ports]

    assert {address for _, address in published} == {"127.0.0.1"}
    assert {name.rsplit("-", 1)[0] for name, _ in published} == {"relayq-e2e-edge"}


@pytest.mark.parametrize("service", ["reaper", "relay-1", "model-1"])
def test_what_runs_models_and_holds_keys_cannot_reach_out(cluster: Cluster, service: str) -> None:
    code = "import socket; socket.create_connection(('192.0.2.1', 443), timeout=2)"

    with pytest.raises(RuntimeError, match="unreachable"):
        _ = cluster.run(service, "python", "-c", code)


def test_a_pods_model_is_reached_from_its_pod_alone(cluster: Cluster) -> None:
    call = "import socket; socket.create_connection(('{}', 9000), timeout=2)"

    _ = cluster.run("relay-1", "python", "-c", call.format("127.0.0.1"))
    with pytest.raises(RuntimeError, match="refused"):
        _ = cluster.run("relay-1", "python", "-c", call.format("pod-2"))


def test_each_service_has_its_own_redis_user_and_nobody_else_gets_in(cluster: Cluster) -> None:
    listed = {line.split()[1] for line in cluster.redis("ACL", "LIST").split("\n")}
    assert listed == {"default", "gateway", "relay", "reaper", "operator"}
    connected = {
        word.removeprefix("user=")
        for line in cluster.redis("CLIENT", "LIST").split("\n")
        for word in line.split()
        if word.startswith("user=")
    }
    assert connected == {"gateway", "relay", "reaper", "operator"}
    assert "NOPERM" in cluster.run("valkey", "valkey-cli", "HGETALL", "job:x")
    for user in ("gateway", "relay", "reaper"):
        for command in (("CONFIG", "SET", "maxmemory", "1"), ("FLUSHALL",), ("GET", "elsewhere"), ("ACL", "WHOAMI")):
            assert "NOPERM" in cluster.redis(*command, user=user), (user, command)


@pytest.mark.parametrize("service", ["gateway", "reaper", "relay-1", "model-1"])
@pytest.mark.parametrize("after_seconds", [0.0, 0.1, 1.0])
def test_a_service_ends_soon_after_sigterm_at_any_moment_of_its_start(
    cluster: Cluster, nemesis: Nemesis, service: str, after_seconds: float
) -> None:
    """As PID 1 without a handler a process ignores SIGTERM, and the container is killed after its grace time."""
    nemesis.stop(service)
    container = cluster.container(service)
    container.start()
    time.sleep(after_seconds)

    began = time.monotonic()
    container.stop(timeout=30)

    assert time.monotonic() - began < 8
    container.reload()
    # 143: the signal came before the program could handle it, and ended it.
    assert container.attrs["State"]["ExitCode"] in {0, 143}


@pytest.mark.parametrize("service", ["gateway", "reaper", "relay-1", "model-1"])
def test_an_idle_service_ends_with_zero_when_told(cluster: Cluster, nemesis: Nemesis, service: str) -> None:
    began = time.monotonic()
    nemesis.stop(service)

    assert time.monotonic() - began < 8
    assert cluster.container(service).attrs["State"]["ExitCode"] == 0


def test_jobs_that_arrive_as_their_relays_are_stopped_run_once_each(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, judge: Judge
) -> None:
    """SIGTERM to idle, blocked relays in the moment that a job is pushed: nobody pops a job and forgets it."""
    for round_ in range(10):
        pod = round_ % 3 + 1
        relay = nemesis.terminate(f"relay-{pod}")
        jobs = [workload.submit_surely() for _ in range(3)]
        for job_id in jobs:
            _ = workload.until(job_id, "completed", within_seconds=30)
        _ = eventually(lambda one=relay: one.reload() or one.status == "exited", within=15)
        assert cluster.container(f"relay-{pod}").attrs["State"]["ExitCode"] == 0
        nemesis.heal()

    judge()
