"""Names of models and releases: what the chart makes of them is what queuecore makes, short enough and never shared."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest

from chart.rendering import DATA, MODEL, REDIS, Refused, find, pod_templates, render
from queuecore.config import Transport
from queuecore.names import _RESERVED_PART, check_model_name, kubernetes_name
from queuecore.redis.keys import QueueKeys

NAMES: dict[str, Any] = json.loads((DATA / "model_names.json").read_text("utf-8"))
RFC_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
ODD = [
    "a" * 200,
    "A" * 200,
    "a-" * 99 + "b",
    "x" * 28 + "-" + "y" * 40,
    "x" * 29 + "-" + "y" * 40,
    "0",
    "9.9/8:7",
    "Z_z.Z-z/Z:z",
    "a" + "._-" * 12 + "b",
    "UPPER/lower",
]
GOOD = [
    *NAMES["accept"],
    *ODD,
    *(name for group in NAMES["must_not_collide"] for name in group if "pending" not in name),
]
RELEASES = ["prod", "a", "an-unreasonably-long-release-name-of-53-characters-xx", "1.rel", "x.y.z", "7"]
OVERRIDES = [
    ("prod", "o" * 63),
    ("forty-characters-of-a-release-name-xxxxxx", "sixty-three-characters-of-a-name-that-somebody-gave-to-the-rele"),
    ("prod", "Odd_Name"),
]


def models(*names: str, **keys: Any) -> dict[str, Any]:
    return {**REDIS, "models": {name: {**MODEL, **keys} for name in names}}


def test_object_names_are_those_of_queuecore() -> None:
    jobs = find(render(models(*GOOD)), "ScaledJob")
    made = {job["metadata"]["annotations"]["relayq/model"]: job["metadata"]["name"] for job in jobs}

    assert made == {name: f"prod-relay-{kubernetes_name(name)}" for name in GOOD}


@pytest.mark.parametrize("transport", get_args(Transport))
def test_keda_counts_the_keys_that_the_queue_uses(transport: str) -> None:
    values = models(*GOOD) if transport == "stage" else models(*GOOD, transport=transport)
    if transport == "stage":
        values["pipelines"] = {"ingest": {"stages": GOOD}}
    jobs = find(render(values), "ScaledJob")
    assert len(jobs) == len(GOOD)
    for job in jobs:
        keys = QueueKeys(job["metadata"]["annotations"]["relayq/model"])
        counted = {
            trigger["metadata"].get("listName") or trigger["metadata"]["stream"] for trigger in job["spec"]["triggers"]
        }
        used = {
            "list": {keys.pending, keys.processing},
            "sortedset": {keys.queue, keys.claims_idx},
            "stream": {*keys.lanes},
            "stage": {keys.queue, keys.fetched},
        }
        assert counted == used[transport]


@pytest.mark.parametrize(("release", "override"), [*((release, "") for release in RELEASES), *OVERRIDES])
def test_no_two_objects_share_a_name_and_none_is_too_long(release: str, override: str) -> None:
    values: dict[str, Any] = {
        **models(*GOOD, scaling={"kind": "ScaledObject"}),
        "redis": {},
        "valkey": {"enabled": True},
    }
    values["models"]["job"] = MODEL
    documents = render(values, {"fullnameOverride": override}, release=release)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]

    assert len(set(names)) == len(names)
    for kind, name in names:
        assert RFC_1035.match(name), f"{kind} {name}"
        assert len(name) <= 63, f"{kind} {name}"
    for document in documents:
        for template in [document, *(template for _, template in pod_templates([document]))]:
            for label, value in template["metadata"].get("labels", {}).items():
                assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value), f"{label}: {value}"


def test_two_long_releases_never_share_a_name() -> None:
    shared = "an-unreasonably-long-release-name-of-53-characters-x"
    left, right = (
        {document["metadata"]["name"] for document in find(render(models("m"), release=shared + end), "ScaledJob")}
        for end in "xy"
    )
    assert left.isdisjoint(right)


@pytest.mark.parametrize(
    "name",
    [
        *NAMES["refuse_or_encode"],
        *(name for group in NAMES["must_not_collide"] for name in group if "pending" in name),
        *(f"a:{word}" for word in sorted(_RESERVED_PART)),
        "a" * 201,
        "-a",
        "a/",
        "a//b",
        "./a",
        "a:b:lease",
        "a/b:high",
    ],
)
def test_the_chart_refuses_the_names_that_queuecore_refuses(name: str) -> None:
    with pytest.raises(ValueError, match="model name"):
        _ = check_model_name(name)
    with pytest.raises(Refused, match=r"models: model name"):
        _ = render(models(name))
