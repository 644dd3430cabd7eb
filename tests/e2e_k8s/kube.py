"""kubectl and helm as a test needs them. ``CLUSTER_EXEC`` is put before each command where a cluster must be entered first."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

HERE: Final = Path(__file__).resolve().parent
CHART: Final = HERE.parents[1] / "charts" / "relayq"
ENTER: Final = tuple(shlex.split(os.environ.get("CLUSTER_EXEC", "")))
TAG: Final = os.environ.get("E2E_K8S_TAG", "0.1.0")
T = TypeVar("T")


class Change(NamedTuple):
    """What a client saw of a job, and when (Unix time of the cluster's clock)."""

    at: float
    status: str
    attempts: int
    reaps: int


def run(*command: str, stdin: str | None = None, within: float = 300) -> str:
    """The command's output; ``AssertionError`` with everything it said when it fails."""
    done = subprocess.run([*ENTER, *command], input=stdin, capture_output=True, text=True, check=False, timeout=within)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def eventually(probe: Callable[[], T], *, within: float, every: float = 0.5, what: str) -> T:
    """The first true value; ``AssertionError`` with the last one after ``within`` seconds."""
    end = time.monotonic() + within
    while not (value := probe()):
        assert time.monotonic() < end, f"{what}: still {value!r} after {within:g} s"
        time.sleep(every)
    return value


class Namespace:
    """One namespace with one release of the chart in it."""

    def __init__(self, name: str, release: str) -> None:
        self.name = name
        self.release = release
        self.installed_at = ""

    def create(self) -> None:
        """With Pod Security at its strictest, so that a pod that is not restricted is not admitted."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name, "labels": labels}}
        _ = run("kubectl", "apply", "-f", "-", stdin=json.dumps(manifest))

    def delete(self) -> None:
        """With everything in it."""
        _ = run("kubectl", "delete", "namespace", self.name, "--ignore-not-found", "--wait", "--timeout=120s")

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """``kubectl`` in the namespace."""
        return run("kubectl", "--namespace", self.name, *arguments, stdin=stdin)

    def helm(self, *arguments: str, stdin: str | None = None) -> str:
        """``helm`` in the namespace."""
        return run("helm", "--namespace", self.name, *arguments, stdin=stdin)

    def get(self, kind: str, *, model: str = "", component: str = "") -> list[dict[str, Any]]:
        """The release's objects of a kind."""
        labels = {"app.kubernetes.io/instance": self.release, "app.kubernetes.io/component": component}
        selector = ",".join(f"{key}={value}" for key, value in labels.items() if value)
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "--selector", selector, "-o", "json"))[
            "items"
        ]
        return [one for one in found if not model or _model(one) == model]

    def pods(self, model: str) -> list[dict[str, Any]]:
        """Relay pods of a model that have not ended."""
        return [pod for pod in self.get("pods", model=model) if pod["status"]["phase"] in {"Pending", "Running"}]

    def ask(self, command: str, *, pod: str = "client", **arguments: object) -> Any:
        """What ``client.py`` answers from within the cluster."""
        script = (HERE / "client.py").read_text("utf-8")
        exec_in_client = ("exec", "-i", pod, "--", "python", "-", command, json.dumps(arguments))
        return json.loads(self.kubectl(*exec_in_client, stdin=script))

    def submit(self, model: str, count: int, **fields: object) -> list[str]:
        """Ids of ``count`` new jobs."""
        named = {name: str(value) for name, value in fields.items()}
        return self.ask("submit", url=self.url, model=model, count=count, fields=named)

    def follow(self, ids: Sequence[str], *, within: float) -> Mapping[str, list[Change]]:
        """Every change of these jobs until all have ended, each with its time."""
        seen: dict[str, list[list[Any]]] = self.ask("follow", url=self.url, ids=list(ids), seconds=within)
        return {job_id: [Change(*change) for change in changes] for job_id, changes in seen.items()}

    @property
    def url(self) -> str:
        """The gateway's jobs, from a pod of the namespace."""
        return f"http://{self.release}-gateway/jobs/speech"


def _model(one: dict[str, Any]) -> str:
    # KEDA copies a ScaledJob's annotations to its Jobs; pods have their own from the template.
    return one["metadata"].get("annotations", {}).get("relayq/model", "")
