"""Faults, each recorded in the history, and their undoing.

A fault is done through the Docker API, as an operator, a node or the kernel would do it. ``heal`` undoes all that is
still in place, in any order, so that a test can end anywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, cast

import docker.errors
from docker.models.containers import Container

from e2e.cluster import Cluster, eventually
from e2e.history import History

# Makes every other process of the container the kernel's first choice, then takes all memory there is.
_HOG: Final = """
import os, pathlib
for path in pathlib.Path("/proc").iterdir():
    if path.name.isdigit() and int(path.name) != os.getpid():
        try:
            (path / "oom_score_adj").write_text("1000")
        except OSError:
            pass
blocks = []
while True:
    blocks.append(bytearray(1 << 20))
"""


class Nemesis:
    """Breaks containers of one cluster."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._undo: dict[str, Callable[[], object]] = {}

    def kill(self, service: str, *, index: int = 1, job_id: str = "") -> None:
        """SIGKILL to everything in the container."""
        container = self._cluster.container(service, index)
        self._fault("kill", container, job_id)
        container.kill("SIGKILL")
        self._remember("kill", container, container.start)

    def kill_pod(self, pod: int, *, job_id: str = "") -> None:
        """SIGKILL to relay, model and network namespace, as when a node dies; the relay first."""
        self.kill(f"relay-{pod}", job_id=job_id)
        self.kill(f"model-{pod}")
        self.kill(f"pod-{pod}")
        parts = [self._cluster.container(f"{part}-{pod}") for part in ("pod", "model", "relay")]
        for part in parts:
            _ = self._undo.pop(f"kill {part.name}", None)

        def start_in_order() -> None:
            for part in parts:  # the namespace first: the others live in it
                part.start()

        self._undo[f"kill pod {pod}"] = start_in_order

    def out_of_memory(self, service: str, *, job_id: str = "") -> None:
        """Take the container's memory until the kernel kills what runs in it."""
        container = self._cluster.container(service)
        self._fault("oom", container, job_id)
        _ = container.exec_run(["python", "-c", _HOG])
        self._remember("oom", container, container.start)

    def stop(self, service: str, *, index: int = 1, grace_seconds: int = 60) -> None:
        """SIGTERM, then SIGKILL after the grace time; returns when the container has ended."""
        container = self._cluster.container(service, index)
        self._fault("stop", container)
        container.stop(timeout=grace_seconds)
        self._remember("stop", container, container.start)

    def terminate(self, service: str, *, index: int = 1) -> Container:
        """SIGTERM and nothing more."""
        container = self._cluster.container(service, index)
        self._fault("terminate", container)
        container.kill("SIGTERM")
        self._remember("terminate", container, container.start)
        return container

    def pause(self, service: str, *, index: int = 1, job_id: str = "") -> None:
        """Freeze every process; its connections stay open."""
        container = self._cluster.container(service, index)

        def frozen() -> bool:
            try:
                container.pause()
            except docker.errors.APIError as error:
                if "unable to freeze" not in str(error):  # a busy machine's kernel may need another try
                    raise
                return False
            return True

        _ = eventually(frozen, within=20, what=f"{service} is frozen")
        self._fault("pause", container, job_id)
        self._remember("pause", container, container.unpause)

    def restart(self, service: str, *, index: int = 1, grace_seconds: int = 10) -> None:
        """Stop and start."""
        container = self._cluster.container(service, index)
        self._fault("restart", container)
        container.restart(timeout=grace_seconds)

    def cut_off(self, service: str, network: str, *, index: int = 1, job_id: str = "") -> None:
        """Take the container off a network; nobody on either side is told."""
        container, net = self._cluster.container(service, index), self._cluster.network(network)
        self._fault(f"cut off from {network}", container, job_id)
        net.disconnect(container)
        self._remember(f"cut {network}", container, lambda: net.connect(container, aliases=[service]))

    def fill(self) -> None:
        """Valkey has no memory left: writes that need some are refused with -OOM."""
        container = self._cluster.container("valkey")
        before = self._cluster.redis("CONFIG", "GET", "maxmemory").split("\n")[1]
        self._fault("fill", container)
        _ = self._cluster.redis("CONFIG", "SET", "maxmemory", "1")
        self._remember("fill", container, lambda: self._cluster.redis("CONFIG", "SET", "maxmemory", before))

    def slow(self, service: str, *, cpus: float) -> None:
        """Leave the container this fraction of a processor."""
        container = self._cluster.container(service)
        self._fault(f"slow to {cpus} processors", container)
        _ = container.update(cpu_period=100_000, cpu_quota=int(cpus * 100_000))
        self._remember("slow", container, lambda: cast("object", container.update(cpu_quota=-1)))

    def heal(self, only: str = "") -> None:
        """Undo what is in place; with ``only``, what concerns that container or has that name."""
        for name in [name for name in self._undo if only in name]:
            undo = self._undo.pop(name)
            with contextlib.suppress(docker.errors.NotFound):  # it was replaced meanwhile
                _ = undo()
            _ = self._history.add("heal", detail=name)

    def _fault(self, what: str, container: Container, job_id: str = "") -> None:
        _ = self._history.add("fault", target=str(container.name), detail=what, job_id=job_id)

    def _remember(self, what: str, container: Container, undo: Callable[[], object]) -> None:
        self._undo[f"{what} {container.name}"] = undo
