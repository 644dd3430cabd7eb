"""The chart as Helm renders it, and what a kubelet would make of the result."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from queuecore.testing.lacking import lacking

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "charts" / "relayq"
CI_VALUES: Final = sorted((CHART / "ci").glob("*-values.yaml"))
DATA: Final = Path(__file__).with_name("data")
REDIS: Final[dict[str, Any]] = {"redis": {"url": "redis://redis.example.com:6379"}}
MODEL: Final[dict[str, Any]] = {"service_type": "chat", "operations": {"complete": "/v1/x"}}
Document = dict[str, Any]


class Refused(Exception):
    """Helm refused the values; the text is its whole output."""


class Container(NamedTuple):
    """One container with the pod around it."""

    owner: str
    name: str
    spec: Document
    pod: Document


def render(
    *values: Mapping[str, Any] | Path, release: str = "prod", namespace: str = "queue", flags: tuple[str, ...] = ()
) -> list[Document]:
    """What ``helm template`` makes of these values, in this order.

    Raises:
        Refused: Helm did not render.
    """
    return [
        document
        for document in yaml.safe_load_all(render_text(*values, release=release, namespace=namespace, flags=flags))
        if document
    ]


def render_text(
    *values: Mapping[str, Any] | Path, release: str = "prod", namespace: str = "queue", flags: tuple[str, ...] = ()
) -> str:
    """The same as text."""
    helm = shutil.which("helm")
    if helm is None:
        lacking("helm is not installed; charts/check.sh says how to run these")
    with tempfile.TemporaryDirectory() as directory:
        command = [helm, "template", release, str(CHART), "--namespace", namespace, *flags]
        for number, one in enumerate(values):
            path = one if isinstance(one, Path) else Path(directory) / f"{number}.yaml"
            if not isinstance(one, Path):
                _ = path.write_text(json.dumps(one), "utf-8")
            command += ["--values", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def find(documents: list[Document], kind: str) -> list[Document]:
    """Those of one kind."""
    return [document for document in documents if document["kind"] == kind]


def one(documents: list[Document], kind: str, name: str) -> Document:
    """The only one of this kind and name."""
    (found,) = [document for document in find(documents, kind) if document["metadata"]["name"] == name]
    return found


def pod_templates(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    """(kind/name, pod template) of everything that makes pods."""
    for document in documents:
        spec: Document = document.get("spec") or {}
        template = spec.get("template") or (spec.get("jobTargetRef") or {}).get("template")
        if template:
            yield f"{document['kind']}/{document['metadata']['name']}", template


def containers(documents: list[Document]) -> Iterator[Container]:
    """Every container, sidecars included."""
    for owner, template in pod_templates(documents):
        pod = template["spec"]
        for spec in [*pod.get("initContainers", ()), *pod["containers"]]:
            yield Container(owner, spec["name"], spec, pod)


def environment(
    container: Container, documents: list[Document], secrets: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, str]:
    """The environment that the kubelet would give it: values, and keys of Secrets (rendered or given)."""
    known = {name: dict(data) for name, data in (secrets or {}).items()}
    for secret in find(documents, "Secret"):
        known[secret["metadata"]["name"]] = decoded(secret)
    environ: dict[str, str] = {}
    for entry in container.spec.get("env", ()):
        if "value" in entry:
            assert isinstance(entry["value"], str), f"{container.owner}: {entry['name']} is not a string"
            environ[entry["name"]] = entry["value"]
        else:
            reference = entry["valueFrom"]["secretKeyRef"]
            environ[entry["name"]] = known[reference["name"]][reference["key"]]
    return environ


def decoded(secret: Document) -> dict[str, str]:
    """A Secret's data as text."""
    return {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}
