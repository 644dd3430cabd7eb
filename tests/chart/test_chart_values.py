"""Values: every key may be set to null, unknown keys are named, 0 and false stay, pods stay restricted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from chart.rendering import (
    CHART,
    CI_VALUES,
    MODEL,
    REDIS,
    ROOT,
    Document,
    Refused,
    containers,
    environment,
    find,
    one,
    pod_templates,
    render,
    render_text,
)

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))
BOTH_KINDS: dict[str, Any] = {
    "models": {"job": MODEL, "warm": {**MODEL, "scaling": {"kind": "ScaledObject"}}},
    "redis": {"url": "redis://redis.example.com:6379", "auth": {"password": "x"}},
}


def key_paths(schema: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key that the chart documents, groups included."""
    for key, part in schema["properties"].items():
        yield (*prefix, key)
        if "properties" in part and part.get("additionalProperties") is False:
            yield from key_paths(part, (*prefix, key))


def nested(path: tuple[str, ...], value: object) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return cast("dict[str, Any]", value)


ALL_KEYS = [path for path in key_paths(SCHEMA) if path != ("global",)]
GROUPS = [(), *(path for path in ALL_KEYS if any(other[:-1] == path for other in ALL_KEYS))]


def rendered_or_refused(*values: dict[str, Any]) -> str:
    try:
        return render_text(*values)
    except Refused as refused:
        return f"Refused: {refused}"


@pytest.mark.parametrize("path", ALL_KEYS, ids=".".join)
def test_null_takes_a_default_away_or_is_refused_by_name(path: tuple[str, ...]) -> None:
    text = rendered_or_refused(BOTH_KINDS, nested(path, None))

    assert not text.startswith("Refused") or path[-1] in text
    for fault in ("nil pointer", "<nil>", "wrong type", "%!"):
        assert fault not in text
    assert "null" not in [line.rpartition(": ")[2] for line in text.splitlines()]


@pytest.mark.parametrize("path", GROUPS, ids=lambda path: ".".join(path) or "top")
def test_a_key_that_nobody_reads_is_refused_by_name(path: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match="additional properties 'mispelt' not allowed"):
        _ = render(REDIS, nested((*path, "mispelt"), 1))


@pytest.mark.parametrize("section", ["scaling", "inference"])
def test_a_key_of_a_model_that_nobody_reads_is_refused_by_name(section: str) -> None:
    with pytest.raises(Refused, match=f"(?s)models/m/{section}.*'mispelt' not allowed"):
        _ = render(REDIS, {"models": {"m": {**MODEL, section: {"mispelt": 1}}}})


def test_zero_and_false_are_what_was_given() -> None:
    values = {
        "gateway": {"replicas": 0, "preStopSeconds": 0, "drainSeconds": 0, "acceptSeedCompletions": False},
        "relay": {"drainSeconds": 0, "ttlSecondsAfterFinished": 0, "breaker": {"failures": 0}},
        "lifecycle": {"gc": {"maxReapAttempts": 0}},
        "models": {
            "job": {**MODEL, "cache_seconds": 0, "default": False},
            "warm": {**MODEL, "scaling": {"kind": "ScaledObject", "min": 0, "cooldownSeconds": 0, "maxJobs": 0}},
        },
    }
    documents = render(REDIS, values)
    gateway = one(documents, "Deployment", "prod-gateway")
    (job,) = find(documents, "ScaledJob")
    (scaled,) = find(documents, "ScaledObject")
    environ = {
        (container.owner.partition("/")[0], container.name): environment(container, documents)
        for container in containers(documents)
    }

    assert gateway["spec"]["replicas"] == 0
    assert job["spec"]["jobTargetRef"]["ttlSecondsAfterFinished"] == 0
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["cooldownPeriod"]) == (0, 0)
    assert environ["Deployment", "gateway"]["GATEWAY_DRAIN_SECONDS"] == "0"
    assert environ["Deployment", "gateway"]["GATEWAY_ACCEPT_SEED_COMPLETIONS"] == "false"
    assert environ["ScaledJob", "relay"]["RELAY_DRAIN_SECONDS"] == "0"
    assert environ["ScaledJob", "relay"]["RELAY_BREAKER_FAILURES"] == "0"
    assert environ["ScaledJob", "relay"]["MAX_REAP_ATTEMPTS"] == "0"
    assert environ["Deployment", "relay"]["RELAY_MAX_JOBS"] == "0"
    (models,) = find(documents, "ConfigMap")
    read = yaml.safe_load(models["data"]["models.yaml"])["models"]["job"]
    assert (read["cache_seconds"], read["default"]) == (0, False)


@pytest.mark.parametrize("flags", [(), ("--set", "gateway.maxUploadBytes=10737418240")], ids=["file", "--set"])
def test_big_numbers_stay_whole(flags: tuple[str, ...]) -> None:
    values = {
        "gateway": {"maxUploadBytes": 10737418240},
        "retention": {"resultTtlSeconds": 2592000},
        "claims": {"reclaimIntervalMs": 1000000},
        "relay": {"schedulingSeconds": 1000000},
    }
    text = render_text(REDIS, values, flags=flags)

    for number in ("10737418240", "2592000", "1000000", "1004895"):
        assert number in text
    assert "e+" not in text


SCALED = {"keda": {"enabled": True}, "gateway": {"autoscaling": {"enabled": True}}}


def test_what_an_autoscaler_scales_has_no_number_of_its_own() -> None:
    documents = render(BOTH_KINDS, SCALED)
    targets = [
        document["spec"]["scaleTargetRef"]["name"]
        for document in [*find(documents, "ScaledObject"), *find(documents, "HorizontalPodAutoscaler")]
    ]
    assert len(targets) == 2
    for target in targets:
        assert "replicas" not in one(documents, "Deployment", target)["spec"]


@pytest.mark.parametrize(
    "values", [path for path in CI_VALUES if "without-keda" not in path.name], ids=lambda path: path.stem
)
def test_every_pod_satisfies_the_restricted_standard(values: Path) -> None:
    documents = render(values)
    for owner, template in pod_templates(documents):
        pod = template["spec"]
        assert pod["enableServiceLinks"] is False, owner
        assert pod["automountServiceAccountToken"] is False, owner
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), owner
        assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", owner
        assert not [volume for volume in pod.get("volumes", ()) if "hostPath" in volume], owner
    for container in containers(documents):
        where = f"{container.owner}: {container.name}"
        context: Document = container.spec["securityContext"]
        assert context["allowPrivilegeEscalation"] is False, where
        assert context["capabilities"] == {"drop": ["ALL"]}, where
        assert {**container.pod["securityContext"], **context}["runAsNonRoot"] is True, where
        assert "hostPort" not in str(container.spec.get("ports")), where
        if container.name != "inference":
            assert context["readOnlyRootFilesystem"] is True, where
            assert container.spec["resources"]["limits"]["memory"], where
            assert "livenessProbe" in container.spec, where
        assert not container.spec["image"].endswith(":latest"), where


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_every_policy_and_selector_finds_pods_and_every_object_has_its_place(values: Path) -> None:
    documents = render(values)
    labels = [template["metadata"]["labels"] for _, template in pod_templates(documents)]

    def selects(selector: dict[str, str]) -> bool:
        return any(selector.items() <= found.items() for found in labels)

    for document in documents:
        where = f"{document['kind']}/{document['metadata']['name']}"
        assert document["metadata"]["namespace"] == "queue", where
        spec: Document = document.get("spec") or {}
        selector = spec.get("podSelector") or spec.get("selector") or {}
        wanted = selector if document["kind"] == "Service" else selector.get("matchLabels", {})
        assert not wanted or selects(wanted), where
    policies = [policy["spec"]["podSelector"]["matchLabels"] for policy in find(documents, "NetworkPolicy")]
    assert not policies or all(any(policy.items() <= found.items() for policy in policies) for found in labels)


def test_the_schema_and_the_readme_are_what_the_values_say() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "charts" / "generate.py"), "--verify"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
