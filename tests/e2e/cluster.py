"""The product in containers: brought up, looked at and taken down through Compose and the Docker API."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import docker
import docker.errors
import httpx
from docker.models.containers import Container

ROOT: Final = Path(__file__).resolve().parent.parent.parent
ARTIFACTS: Final = ROOT / "artifacts" / "e2e"
PROJECT: Final = "relayq-e2e"
MODEL: Final = "whisper-large-v3"
LEASE_SECONDS: Final = 10  # of models.yaml beside this file
OTHER_MODELS: Final = ("by-deadline", "by-arrival", "chunk", "keep")  # one of each other transport, and two stages
PODS: Final = (1, 2, 3)
RECEIVER: Final = "receiver:9000"  # of webhooks
T = TypeVar("T")


def eventually(probe: Callable[[], T], *, within: float, every: float = 0.05, what: str = "") -> T:
    """The first true value of ``probe``; ``AssertionError`` with the last one after ``within`` seconds."""
    end = time.monotonic() + within
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what or getattr(probe, '__name__', 'probe')}: still {value!r} after {within} s")
        time.sleep(every)


class Cluster:
    """One Compose project of its own name, ports, secrets and volumes."""

    def __init__(self, directory: Path = ARTIFACTS) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._env_file = directory / "env"
        self._docker = docker.from_env(timeout=120)
        self.port, self.admin_port = _free_port(), _free_port()
        self._prepare()

    @property
    def url(self) -> str:
        """The public address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """The admin port's address."""
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def admin_token(self) -> str:
        """The bearer token that was generated for it."""
        return (self.directory / "secrets" / "admin-token").read_text("utf-8").strip()

    def _prepare(self) -> None:
        self._env_file.unlink(missing_ok=True)
        _ = subprocess.run(
            [
                *(sys.executable, ROOT / "deploy" / "prepare.py"),
                *("--env-file", self._env_file, "--secrets", self.directory / "secrets"),
            ],
            check=True,
        )
        # Passwords with every character that has broken somebody's URL, shell or YAML.
        odd = 'p@s:s#w/o?r&d %+="`\\' + secrets.token_hex(4)
        text = self._env_file.read_text("utf-8")
        lines = [
            f"VALKEY_RELAY_PASSWORD='{odd}'" if line.startswith("VALKEY_RELAY_PASSWORD=") else line
            for line in text.splitlines()
            if not line.startswith(("RELAYQ_PORT=", "RELAYQ_ADMIN_PORT=", "GATEWAY_WEBHOOK_ALLOW="))
        ]
        lines += [
            f"RELAYQ_PORT={self.port}",
            f"RELAYQ_ADMIN_PORT={self.admin_port}",
            f"RELAYQ_SECRETS={self.directory / 'secrets'}",
            f"GATEWAY_WEBHOOK_ALLOW={RECEIVER}",
            f"RELAYQ_MODELS_FILE={ROOT / 'tests' / 'e2e' / 'models.yaml'}",
        ]
        _ = self._env_file.write_text("\n".join(lines) + "\n", "utf-8")

    # -- the project --------------------------------------------------------------------------------------------

    def compose(self, *arguments: str, timeout: float = 600, env: Mapping[str, str] | None = None) -> str:
        """``docker compose … arguments`` on this project; its output. Raises with the output when it fails."""
        command = ["docker", "compose", "--project-name", PROJECT, "--env-file", str(self._env_file)]
        command += ["--project-directory", str(ROOT), "--file", "compose.yaml", "--file", "tests/e2e/compose.yaml"]
        done = subprocess.run(
            [*command, *arguments],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"docker compose {' '.join(arguments)}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def up(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        """Start what is not running, and wait until every service is healthy."""

        def started() -> bool:
            try:
                _ = self.compose("up", "--detach", *arguments, env=env)
            except RuntimeError as error:
                if "is unhealthy" not in str(error):  # Compose gives up on what has not yet recovered from a fault
                    raise
                return False
            return True

        _ = eventually(started, within=180, every=2, what="everything is started")
        _ = eventually(lambda: not self.unwell(), within=180, every=0.5, what="every service is healthy")

    def unwell(self) -> list[str]:
        """Containers that should run and do not, or are not healthy."""
        found: list[str] = []
        for container in self.containers():
            state = container.attrs["State"]
            ended_well = state["Status"] == "exited" and state["ExitCode"] == 0 and "-bucket-" in str(container.name)
            healthy = state["Status"] == "running" and state.get("Health", {}).get("Status", "healthy") == "healthy"
            if not (ended_well or healthy):
                found.append(f"{container.name}: {state['Status']}")
        return found

    def down(self) -> None:
        """Stop everything and remove its volumes."""
        _ = self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")

    def containers(self, service: str | None = None) -> list[Container]:
        """The project's containers, stopped ones too."""
        labels = [f"com.docker.compose.project={PROJECT}"]
        if service:
            labels.append(f"com.docker.compose.service={service}")
        found = self._docker.containers.list(all=True, filters={"label": labels})
        return sorted(found, key=lambda one: str(one.name))

    def container(self, service: str, index: int = 1) -> Container:
        """One replica, counted from 1."""
        return self.containers(service)[index - 1]

    def run(self, service: str, *command: str, index: int = 1) -> str:
        """Run a command in a container; its output. Raises when it fails."""
        code, output = self.container(service, index).exec_run(list(command))
        text = cast("bytes", output).decode("utf-8", "replace")
        if code:
            raise RuntimeError(f"{service}: {' '.join(command)} ended with {code}: {text}")
        return text

    def network(self, name: str) -> Any:
        """A network of the project."""
        return self._docker.networks.get(f"{PROJECT}_{name}")

    def memory_bytes(self) -> dict[str, int]:
        """Container name -> memory that is not page cache, of every running container."""
        found: dict[str, int] = {}
        for container in self.containers():
            if container.status != "running":
                continue
            try:
                answer = cast("dict[str, Any]", self._docker.api.stats(str(container.id), stream=False, one_shot=True))
            except docker.errors.APIError:
                continue  # it has ended meanwhile
            usage: dict[str, Any] = answer["memory_stats"]
            details: dict[str, int] = usage.get("stats", {})
            cache = details.get("total_inactive_file", details.get("inactive_file", 0))  # cgroup 1, cgroup 2
            if "usage" in usage:
                found[str(container.name)] = int(usage["usage"]) - cache
        return found

    # -- what is inside -----------------------------------------------------------------------------------------

    def redis(self, *command: str, user: str = "operator") -> str:
        """One Redis command as one of the ACL users, answered as redis-cli prints it in a pipe."""
        name = f"VALKEY_{user.upper()}_PASSWORD"
        script = f'exec valkey-cli --user {user} -a "${name}" --no-auth-warning "$@"'
        return self.run("valkey", "sh", "-c", script, "sh", *command).rstrip("\n")

    def record(self, job_id: str) -> dict[str, str]:
        """The job's hash in Redis."""
        flat = self.redis("HGETALL", f"job:{job_id}").split("\n")
        return dict(zip(flat[::2], flat[1::2], strict=False))

    def queue_dump(self) -> dict[str, int]:
        """Length of everything that holds live jobs, claims or undelivered verdicts."""
        base = f"relay:{MODEL}"
        lengths = {
            f"{base}:{name}": int(self.redis(command, f"{base}:{name}"))
            for name, command in {
                "pending": "LLEN",
                "processing": "LLEN",
                "paused": "LLEN",
                "delayed": "ZCARD",
                "waiting": "ZCARD",
                "first-seen": "ZCARD",
                "missing": "ZCARD",
                "outbox": "XLEN",
            }.items()
        }
        for model in OTHER_MODELS:
            state = self.queue(model)
            lengths |= {f"{model} {name}": count for name, count in state["depths"].items() if name != "deadletter"}
        lengths[f"{base}:lease:*"] = len(self.keys(f"{base}:lease:*"))
        lengths[f"{base}:ordered:*"] = len(self.keys(f"{base}:ordered:*"))
        return lengths

    def queue(self, model: str) -> dict[str, Any]:
        """What the admin port tells of a model's queue."""
        headers = {"authorization": f"Bearer {self.admin_token}"}
        return httpx.get(f"{self.admin_url}/queues/{model}", headers=headers, timeout=10).raise_for_status().json()

    def keys(self, pattern: str) -> list[str]:
        """All keys that match."""
        found, cursor = set[str](), "0"
        while True:
            cursor, *page = self.redis("SCAN", cursor, "MATCH", pattern, "COUNT", "1000").split("\n")
            found |= {key for key in page if key}
            if cursor == "0":
                return sorted(found)

    def refused_commands(self) -> list[str]:
        """What any ACL user was refused, from Valkey's own log."""
        entries: list[list[Any]] = json.loads(self.run_json("ACL", "LOG", "128"))
        return [str(entry) for entry in entries]

    def run_json(self, *command: str) -> str:
        """The same as ``redis``, printed as JSON."""
        script = 'exec valkey-cli --user operator -a "$VALKEY_OPERATOR_PASSWORD" --no-auth-warning --json "$@"'
        return self.run("valkey", "sh", "-c", script, "sh", *command)

    def journal(self, service: str) -> list[dict[str, Any]]:
        """What a model, or the receiver of webhooks, was asked since it started."""
        code = (
            "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9000/journal', timeout=10).read().decode())"
        )
        return json.loads(self.run(service, "python", "-c", code))["requests"]

    def pod_of(self, job_id: str) -> int:
        """The pod whose relay holds the job; 0 when none does. An owner's name begins with its host's."""
        record = self.record(job_id)
        if record.get("status") != "processing":
            return 0
        host = record["owner"].partition(":")[0]
        pods = [pod for pod in PODS if str(self.container(f"pod-{pod}").id).startswith(host)]
        return pods[0] if pods else 0

    # -- what is kept when a test fails -------------------------------------------------------------------------

    def keep(self, directory: Path, *, since_seconds: float) -> None:
        """Every container's log since then, the queue's lengths and its records."""
        directory.mkdir(parents=True, exist_ok=True)
        for container in self.containers():
            text = container.logs(since=int(since_seconds), timestamps=True)
            _ = (directory / f"{container.name}.log").write_bytes(bytes(text))
        try:
            dump: dict[str, Any] = {"lengths": self.queue_dump(), "refused": self.refused_commands()}
            jobs = [key for key in self.keys("job:*") if not key.endswith(":gone")][-200:]  # the youngest
            dump["jobs"] = {key: self.record(key.removeprefix("job:")) for key in jobs}
        except (RuntimeError, docker.errors.APIError) as error:
            dump = {"error": str(error)}
        _ = (directory / "queue.json").write_text(json.dumps(dump, indent=2), "utf-8")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
