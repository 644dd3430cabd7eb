"""Metrics come out under the documented names, and names and code agree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, generate_latest

from queuecore.telemetry import metrics
from queuecore.telemetry.names import LABELS, METRICS, Event, Metric, metrics_table

ROOT = Path(__file__).parents[4]
SEEDS = {
    "gatewai_async_jobs_reaped_total": ("model", "outcome"),
    "gatewai_relay_queue_orphans_swept_total": ("model", "state"),
    "gatewai_relay_queue_depth": ("model", "state"),
    "async_claim_depth": ("model",),
    "async_claims_expired_total": ("model",),
    "async_duplicate_results_suppressed_total": ("model",),
}


def sources() -> list[Path]:
    return [
        path for pattern in ("libs/*/src", "services/*/src") for one in ROOT.glob(pattern) for path in one.rglob("*.py")
    ]


@pytest.mark.parametrize(("name", "labels"), SEEDS.items())
def test_the_seeds_names_and_labels_are_exact(name: str, labels: tuple[str, ...]) -> None:
    (metric,) = [metric for metric in METRICS if metric.name == name]

    assert metric.labels == labels


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_shown_under_its_name(metric: Metric) -> None:
    (made,) = [
        value
        for value in vars(metrics).values()
        if getattr(value, "_name", None) in {metric.name, metric.name.removesuffix("_total")}
    ]
    labels = ["x"] * len(metric.labels)
    child = made.labels(*labels) if labels else made
    if metric.kind == "histogram":
        child.observe(1)
    else:
        child.inc(0)
    shown = {
        line.split("{")[0].split(" ")[0] for line in generate_latest(REGISTRY).decode().splitlines() if line[0] != "#"
    }

    suffixes = ("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",)
    assert {f"{metric.name}{suffix}" for suffix in suffixes} <= shown
    assert not [name for name in shown if name.startswith(metric.name) and name.endswith("_created")]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_follows_the_conventions(metric: Metric) -> None:
    assert metric.name in SEEDS or metric.name.startswith("relayq_")
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert set(metric.labels) <= LABELS.keys()
    assert (metric.buckets != ()) == (metric.kind == "histogram")
    assert tuple(sorted(metric.buckets)) == metric.buckets


def test_long_histograms_reach_beyond_fifteen_minutes() -> None:
    (end_to_end,) = [metric for metric in METRICS if metric.name == "relayq_end_to_end_seconds"]

    assert end_to_end.buckets[-1] >= 900


def test_no_label_is_left_over_and_no_name_stands_twice() -> None:
    assert {label for metric in METRICS for label in metric.labels} == LABELS.keys()
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert len({str(event) for event in Event}) == len(Event)


def test_the_table_has_a_row_for_every_metric_and_label() -> None:
    rows = [line.split("`")[1] for line in metrics_table().splitlines() if line.startswith("| `")]

    assert rows == [metric.name for metric in METRICS] + list(LABELS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_observed_somewhere_or_says_what_will(metric: Metric) -> None:
    (attribute,) = [
        name
        for name, value in vars(metrics).items()
        if getattr(value, "_name", None) in {metric.name, metric.name.removesuffix("_total")}
    ]
    used = any(f"metrics.{attribute}" in path.read_text("utf-8") for path in sources())

    assert used != bool(metric.later)


def test_every_event_name_is_used() -> None:
    text = "".join(path.read_text("utf-8") for path in sources() if path.name != "names.py")

    assert [event.name for event in Event if f"Event.{event.name}" not in text and f'"{event}"' not in text] == []


def test_every_event_of_a_log_line_has_its_name_in_one_place() -> None:
    """``extra={"event": …}`` holds a member of ``Event`` or its text, never a word of its own."""
    known = {str(event) for event in Event}
    strangers: list[str] = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Dict):
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                if (
                    isinstance(key, ast.Constant)
                    and key.value == "event"
                    and isinstance(value, ast.Constant)
                    and "." in str(value.value)
                    and value.value not in known
                ):
                    strangers.append(f"{path.relative_to(ROOT)}:{value.lineno}: {value.value}")

    assert not strangers
