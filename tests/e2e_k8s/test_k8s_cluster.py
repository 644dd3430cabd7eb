"""The chart on a real cluster with a real KEDA: one release, from its install to its uninstall, in this order.

Needs on the nodes: relayq/{gateway,relay,reaper,mock-inference}:$E2E_K8S_TAG, valkey/valkey:9, versity/versitygw:v1.8.0;
in the cluster: KEDA in the namespace ``keda``.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from e2e_k8s.kube import CHART, HERE, TAG, Change, Namespace, eventually, run

pytestmark = pytest.mark.timeout(900)
STARTS_WITHIN_SECONDS = 60  # a poll of KEDA, a pod of two Python containers on a busy machine


def filled(name: str) -> str:
    return (HERE / name).read_text("utf-8").replace("@TAG@", TAG)


@pytest.fixture(scope="module")
def queue() -> Iterator[Namespace]:
    """The release under test beside an S3 server and a client."""
    namespace = Namespace("relayq-e2e", "e2e")
    namespace.delete()
    namespace.create()
    _ = namespace.kubectl("apply", "-f", "-", stdin=filled("surroundings.yaml"))
    _ = namespace.kubectl("wait", "--for=condition=Ready", "pod/s3", "pod/client", "--timeout=120s")
    install(namespace)
    namespace.installed_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    yield namespace
    namespace.delete()


def install(namespace: Namespace, *flags: str) -> None:
    command = (
        "upgrade",
        "--install",
        namespace.release,
        str(CHART),
        "--values",
        "-",
        "--wait",
        "--timeout",
        "3m",
        *flags,
    )
    _ = namespace.helm(*command, stdin=filled("values.yaml"))


def report(text: str) -> None:
    """A measured figure, shown by ``pytest -rP``."""
    _ = sys.stdout.write(f"{text}\n")


SIGKILL = "SIGKILL of the relay"
KILL_THE_RELAY = """
import os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    command = (process / "cmdline").read_bytes().split(b"\\0")
    if command[1:3] == [b"-m", b"relay"]:
        os.kill(int(process.name), signal.SIGKILL)
"""


class JobWatch(threading.Thread):
    """Every Kubernetes Job of a model that is ever seen, and the most that were unfinished at once."""

    def __init__(self, namespace: Namespace, model: str) -> None:
        super().__init__(daemon=True)
        self.seen: set[str] = set()
        self.most = 0
        self._namespace, self._model, self._halt = namespace, model, threading.Event()
        self._before = {job["metadata"]["uid"] for job in namespace.get("jobs", model=model)}

    def run(self) -> None:
        while not self._halt.wait(0.5):
            jobs = self._namespace.get("jobs", model=self._model)
            self.seen |= {job["metadata"]["uid"] for job in jobs} - self._before
            self.most = max(self.most, sum(not ended(job) for job in jobs))

    def stop(self) -> None:
        self._halt.set()
        self.join(30)


def ended(job: dict[str, object]) -> bool:
    status = job["status"]
    assert isinstance(status, dict)
    return any(
        one["type"] in {"Complete", "Failed"} and one["status"] == "True" for one in status.get("conditions", ())
    )


def wait_for_zero(queue: Namespace, model: str, *, within: float = 90) -> None:
    _ = eventually(lambda: not queue.pods(model), within=within, what=f"pods of {model} are gone")


def test_an_idle_queue_has_no_relay(queue: Namespace) -> None:
    # The Deployment names no number of replicas, so it begins with one; KEDA takes that away.
    wait_for_zero(queue, "warm")
    assert queue.pods("fresh") == []
    services = {"gateway", "reaper", "valkey"}
    running = [pod for pod in queue.get("pods") if pod["status"]["phase"] == "Running"]
    assert {pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in running} == services


@pytest.mark.parametrize("model", ["fresh", "sorted", "streamed"])
def test_a_job_starts_a_relay_and_its_end_is_the_relays_end(queue: Namespace, model: str) -> None:
    watch = JobWatch(queue, model)
    watch.start()
    (job_id,) = queue.submit(model, 1)
    changes = queue.follow([job_id], within=STARTS_WITHIN_SECONDS)[job_id]
    wait_for_zero(queue, model, within=30)
    watch.stop()

    assert changes[-1].status == "completed"
    assert changes[-1][2:] == (1, 0)
    assert len(watch.seen) == 1


def test_fourteen_jobs_of_at_most_ten_relays_make_fourteen_and_one_surplus_at_most(queue: Namespace) -> None:
    watch = JobWatch(queue, "fresh")
    watch.start()
    ids = queue.submit("fresh", 14, mock_delay_seconds=5)
    seen = queue.follow(ids, within=240)
    wait_for_zero(queue, "fresh", within=60)
    watch.stop()

    assert {changes[-1].status for changes in seen.values()} == {"completed"}
    assert {changes[-1].attempts for changes in seen.values()} == {1}
    report(f"14 jobs: {len(watch.seen)} Kubernetes Jobs, {watch.most} at once")
    assert 14 <= len(watch.seen) <= 15
    assert watch.most <= 10


def test_a_second_batch_does_not_wait_for_the_first(queue: Namespace) -> None:
    first = queue.submit("fresh", 2, mock_delay_seconds=60)
    _ = eventually(
        lambda: len(queue.pods("fresh")) == 2, within=STARTS_WITHIN_SECONDS, what="relays of the first batch"
    )
    second = queue.submit("fresh", 2, mock_delay_seconds=1)
    seen = queue.follow([*first, *second], within=180)

    assert {changes[-1].status for changes in seen.values()} == {"completed"}
    assert max(seen[one][-1].at for one in second) < min(seen[one][-1].at for one in first)
    wait_for_zero(queue, "fresh")


@pytest.mark.parametrize(
    ("model", "way"),
    [("fresh", SIGKILL), ("fresh", "pod deleted by force"), ("sorted", SIGKILL), ("streamed", SIGKILL)],
)
def test_a_job_whose_relay_dies_is_run_by_another_in_seconds(queue: Namespace, model: str, way: str) -> None:
    (job_id,) = queue.submit(model, 1, mock_delay_seconds=15)
    _ = eventually(
        lambda: queue.ask("document", url=queue.url, id=job_id)["status"] == "processing",
        within=STARTS_WITHIN_SECONDS,
        what="the job runs",
    )
    (pod,) = [pod["metadata"]["name"] for pod in queue.pods(model)]
    followed: dict[str, list[Change]] = {}
    follower = threading.Thread(target=lambda: followed.update(queue.follow([job_id], within=150)), daemon=True)
    follower.start()
    killed_at = time.time()  # noqa: TID251  compared with a process in the cluster
    if way == SIGKILL:
        _ = queue.kubectl("exec", pod, "-c", "relay", "--", "python", "-c", KILL_THE_RELAY)
    else:
        _ = queue.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")
    follower.join(180)
    changes = followed[job_id]

    assert changes[-1].status == "completed"
    assert (changes[-1].attempts, changes[-1].reaps) == (2, 1)
    # As a rule the replacement is there already: KEDA counts the orphan, and its relay waits for what the reaper gives back.
    requeued = next(change.at for change in changes if change.reaps == 1) - killed_at
    again = next(change.at for change in changes if change.attempts == 2) - killed_at
    report(f"{model}, {way}: requeued after {requeued:.1f} s, running again after {again:.1f} s")
    # The promise counts from the death; the kubelet takes some seconds to kill what was deleted.
    assert requeued < (5 if way == SIGKILL else 10)
    assert again < 5 + STARTS_WITHIN_SECONDS
    wait_for_zero(queue, model)


def test_an_upgrade_touches_no_running_job(queue: Namespace) -> None:
    ids = [*queue.submit("fresh", 1, mock_delay_seconds=45), *queue.submit("warm", 1, mock_delay_seconds=45)]
    for job_id in ids:
        _ = eventually(
            lambda job_id=job_id: queue.ask("document", url=queue.url, id=job_id)["status"] == "processing",
            within=STARTS_WITHIN_SECONDS,
            what="the job runs",
        )
    before = {pod["metadata"]["uid"] for pod in queue.pods("fresh")}
    install(queue, "--set", "log.level=DEBUG")

    assert {pod["metadata"]["uid"] for pod in queue.pods("fresh")} == before, "the pod that runs the job stays"
    seen = queue.follow(ids, within=180)
    assert {changes[-1].status for changes in seen.values()} == {"completed"}
    assert {changes[-1][2:] for changes in seen.values()} == {(1, 0)}, "one run each"
    wait_for_zero(queue, "fresh")


def test_the_last_running_job_outlives_the_cool_down_and_the_model_stays_warm(queue: Namespace) -> None:
    wait_for_zero(queue, "warm")
    ids = queue.submit("warm", 4, mock_delay_seconds=1)
    seen = queue.follow(ids, within=120)
    assert {changes[-1].status for changes in seen.values()} == {"completed"}
    (long,) = queue.submit("warm", 1, mock_delay_seconds=40)
    changes = queue.follow([long], within=180)[long]

    assert changes[-1].status == "completed"
    assert changes[-1][2:] == (1, 0), "nothing waits for 40 s, the cool-down is 5 s, and its relay is left alone"
    for pod in queue.pods("warm"):
        statuses = [*pod["status"]["containerStatuses"], *pod["status"]["initContainerStatuses"]]
        assert {status["restartCount"] for status in statuses} == {0}, "the supervisor, not the kubelet, starts relays"
    wait_for_zero(queue, "warm", within=120)


def test_policies_let_keda_count_and_strangers_not_in(queue: Namespace) -> None:
    assert queue.ask("reach", host="e2e-valkey", port=6379, seconds=3) == "TimeoutError"
    assert queue.ask("reach", host="e2e-gateway", port=80, seconds=3) == "open"
    log = run("kubectl", "--namespace", "keda", "logs", "deploy/keda-operator", f"--since-time={queue.installed_at}")
    # What it says of a Redis that it cannot reach; ScaledObject and ScaledJob stay Ready meanwhile.
    assert [line for line in log.splitlines() if "redis_scaler" in line and queue.name in line] == []


def test_the_smallest_install_works_and_keeps_the_password_it_made() -> None:
    trial = Namespace("relayq-trial", "trial")
    trial.delete()
    trial.create()
    try:
        flags = ("--set", "valkey.enabled=true", "--set", f"image.tag={TAG}", "--wait", "--timeout", "3m")
        passwords: list[str] = []
        for _ in range(3):
            _ = trial.helm("upgrade", "--install", trial.release, str(CHART), *flags)
            secret = json.loads(trial.kubectl("get", "secret", "trial-redis", "-o", "json"))
            passwords.append(base64.b64decode(secret["data"]["password"]).decode())
        assert len(set(passwords)) == 1
        assert len(passwords[0]) == 40
        # From the gateway's own pod, on loopback: nothing else is there.
        there = {"pod": "deploy/trial-gateway", "url": "http://127.0.0.1:8080/jobs/transcription"}
        ids = trial.ask("submit", model="whisper-large-v3", count=1, fields={}, **there)
        (changes,) = trial.ask("follow", ids=ids, seconds=STARTS_WITHIN_SECONDS, **there).values()
        assert changes[-1][1:] == ["completed", 1, 0]
    finally:
        leftovers = uninstall(trial)
        trial.delete()
    assert leftovers == []


def test_uninstall_leaves_nothing(queue: Namespace) -> None:
    _ = queue.submit("fresh", 2, mock_delay_seconds=60)
    _ = eventually(lambda: len(queue.pods("fresh")) == 2, within=STARTS_WITHIN_SECONDS, what="relays run")

    assert uninstall(queue) == []


def uninstall(namespace: Namespace) -> list[str]:
    """What is left of the release in its namespace, of any kind."""
    _ = namespace.helm("uninstall", namespace.release, "--wait", "--timeout", "3m")
    kinds = run("kubectl", "api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
    passing = {"events", "events.events.k8s.io", "pods.metrics.k8s.io"}
    asked = ",".join(kind for kind in kinds if kind not in passing and not kind.endswith("external.metrics.k8s.io"))

    def left() -> list[str]:
        names = namespace.kubectl("get", asked, "-o", "name", "--ignore-not-found").split()
        ours = {"pod/s3", "pod/client", "service/s3", "configmap/kube-root-ca.crt", "serviceaccount/default"}
        return [name for name in names if name not in ours and not name.startswith(("endpoint",))]

    end = time.monotonic() + 90
    while (found := left()) and time.monotonic() < end:
        time.sleep(2)
    return found
