"""Alert rules, dashboard and runbooks: what they name exists, and every alert fires when it should and only then."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from queuecore.telemetry.names import METRICS

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "charts/relayq/files/alerts.yaml"
SERIES: Final = Path(__file__).parent / "series.yaml"
RUNBOOKS: Final = ROOT / "docs/runbooks"
DASHBOARD: Final = ROOT / "deploy/monitoring/grafana/dashboards/relayq.json"

_METRIC: Final = re.compile(r"\b(?:relayq|gatewai|async)_\w+")


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]


NAMES: Final = [rule["alert"] for rule in alerts()]


def shown() -> set[str]:
    """Every name that /metrics can show."""
    suffixes = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
    return {metric.name + suffix for metric in METRICS for suffix in suffixes[metric.kind]}


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Each panel's title and query, and those of the variables."""
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def promtool(*arguments: str | Path) -> str:
    """What promtool says; it must be content."""
    path = shutil.which("promtool")
    if path is None:
        text = "promtool is not installed (Debian: prometheus): the alert rules are not tried"
        pytest.fail(text) if os.environ.get("CI") == "true" else pytest.skip(text)
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_well_formed() -> None:
    assert f"{len(NAMES)} rules found" in promtool("check", "rules", RULES)


def test_every_alert_fires_on_its_planted_series_and_on_no_other() -> None:
    _ = promtool("test", "rules", SERIES)


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_is_tried_both_ways(name: str) -> None:
    cases = [
        bool(case["exp_alerts"])
        for test in yaml.safe_load(SERIES.read_text("utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == name
    ]
    assert set(cases) == {True, False}, "a series that makes it fire, and one that does not"


@pytest.mark.parametrize("name", NAMES)
def test_a_series_that_no_longer_fires_is_noticed(name: str, tmp_path: Path) -> None:
    """The planted series watch each rule by itself: with its threshold out of reach, promtool objects."""
    rules = yaml.safe_load(RULES.read_text("utf-8"))
    for rule in rules["groups"][0]["rules"]:
        if rule["alert"] == name:
            rule["expr"] = f"({rule['expr']}) and vector(1) == 2"
    _ = (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rules), "utf-8")
    series = yaml.safe_load(SERIES.read_text("utf-8")) | {"rule_files": ["alerts.yaml"]}
    _ = (tmp_path / "series.yaml").write_text(yaml.safe_dump(series), "utf-8")

    with pytest.raises(AssertionError, match=name):
        _ = promtool("test", "rules", tmp_path / "series.yaml")


def test_what_alerts_and_dashboard_ask_for_is_shown_by_somebody() -> None:
    asked = {(rule["alert"], name) for rule in alerts() for name in _METRIC.findall(rule["expr"])}
    asked |= {(title, name) for title, query in dashboard_queries() for name in _METRIC.findall(query)}

    assert len(asked) > 40
    assert sorted((where, name) for where, name in asked if name not in shown()) == []


def test_the_dashboards_queries_are_well_formed(tmp_path: Path) -> None:
    queries = [
        query.replace("$__rate_interval", "5m").replace('"$model"', '".*"').replace('"$namespace"', '".*"')
        for _, query in dashboard_queries()
    ]
    assert not [query for query in queries if "$" in query]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    _ = (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "p", "rules": rules}]}), "utf-8")

    _ = promtool("check", "rules", tmp_path / "panels.yaml")


@pytest.mark.parametrize("rule", alerts(), ids=NAMES)
def test_an_alert_says_how_bad_it_is_what_to_do_and_where_that_is_written(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"].keys() == {"summary", "action", "runbook"}
    runbook = ROOT / rule["annotations"]["runbook"]
    assert runbook == RUNBOOKS / f"{rule['alert']}.md"
    text = runbook.read_text("utf-8")
    assert text.startswith(f"# {rule['alert']}\n\n{rule['labels']['severity'].capitalize()}. ")
    assert "## Look" in text


def test_every_runbook_has_its_alert() -> None:
    assert sorted(path.stem for path in RUNBOOKS.glob("*.md")) == sorted(NAMES)


def test_the_dashboard_is_one_that_grafana_provisions() -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    ids = [panel["id"] for panel in dashboard["panels"]]
    boxes = [panel["gridPos"] for panel in dashboard["panels"]]

    assert len(set(ids)) == len(ids)
    assert all(box["x"] + box["w"] <= 24 for box in boxes)
    taken = [
        (x, y)
        for box in boxes
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]
    assert len(set(taken)) == len(taken), "no panel lies on another"
    provisioned = yaml.safe_load((DASHBOARD.parents[1] / "datasources/prometheus.yaml").read_text("utf-8"))
    assert {source["uid"] for source in provisioned["datasources"]} >= {
        panel["datasource"]["uid"] for panel in dashboard["panels"] if "datasource" in panel
    }
