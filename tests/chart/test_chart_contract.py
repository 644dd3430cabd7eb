"""Chart and services: what the chart sets, each service knows; what the chart accepts, models.yaml may hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import mock_inference.settings
from chart.rendering import CHART, CI_VALUES, MODEL, REDIS, Refused, containers, environment, find, render
from gateway.settings import GatewaySettings
from queuecore.config import load_config, parse_config
from queuecore.errors import ConfigurationError
from queuecore.settings import CommonSettings, Settings, read_settings
from queuecore.telemetry.names import LABELS, METRICS
from reaper.settings import ReaperSettings
from relay.settings import RelaySettings

SERVICES: dict[str, type[Settings]] = {"gateway": GatewaySettings, "relay": RelaySettings, "reaper": ReaperSettings}


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_every_service_starts_on_the_environment_it_gets(values: Path) -> None:
    documents = render(values)
    models = {
        name for map_ in find(documents, "ConfigMap") for name in parse_config(map_["data"]["models.yaml"]).models
    }
    seen: set[str] = set()
    for container in containers(documents):
        environ = environment(container, documents, _secrets_of(container.spec))
        seen.add(container.name)
        if container.name in SERVICES:
            settings = read_settings(SERVICES[container.name], environ)
            common = read_settings(CommonSettings, environ)
            assert common.blobs_url
            assert common.models_file == "/etc/relayq/models/models.yaml"
            if isinstance(settings, RelaySettings):
                assert settings.model in models
                assert container.pod["terminationGracePeriodSeconds"] > settings.drain_seconds
            if isinstance(settings, GatewaySettings):
                grace = container.pod["terminationGracePeriodSeconds"]
                assert grace > settings.drain_seconds + container.spec["lifecycle"]["preStop"]["sleep"]["seconds"]
        elif "relayq/mock-inference" in container.spec["image"]:
            mock = mock_inference.settings.read_settings(environ)
            assert mock.host == "127.0.0.1"
    assert {"gateway", "relay", "inference"} <= seen


def _secrets_of(spec: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    secrets: dict[str, dict[str, str]] = {}
    for entry in spec.get("env", ()):
        reference = entry.get("valueFrom", {}).get("secretKeyRef")
        if reference:
            secrets.setdefault(reference["name"], {})[reference["key"]] = f"<{reference['key']}>"
    return secrets


def test_a_models_file_of_the_chart_says_what_the_values_say(tmp_path: Path) -> None:
    model = {
        **MODEL,
        "default": False,
        "max_upload_bytes": 10737418240,
        "execution_timeout_seconds": 0.5,
        "cache_seconds": 0,
        "accepted_types": ["audio/*"],
        "retries": {"max_attempts": 3, "backoff_seconds": 1000000},
        "provider": "p",
    }
    values = {"models": {"1.5": model, "null": MODEL, "Qwen/Q:1": MODEL}, "providers": {"p": {"concurrent": 0}}}
    (made,) = find(render(REDIS, values), "ConfigMap")
    (written := tmp_path / "models.yaml").write_text(made["data"]["models.yaml"], "utf-8")

    assert yaml.safe_load(made["data"]["models.yaml"]) == values
    assert load_config(str(written)) == parse_config(yaml.safe_dump(values))
    assert not re.search(r"\d[eE]\+\d", made["data"]["models.yaml"])


WRONG: dict[str, dict[str, Any]] = {
    "unknown key": {"models": {"m": {**MODEL, "lease_secs": 1}}},
    "no operations": {"models": {"m": {"service_type": "chat"}}},
    "bad url": {"models": {"m": {"service_type": "chat", "operations": {"complete": "v1"}}}},
    "bad transport": {"models": {"m": {**MODEL, "transport": "kafka"}}},
    "negative": {"models": {"m": {**MODEL, "max_pending": 0}}},
    "null": {"models": {"m": {**MODEL, "default": None}}},
    "order of a list": {"models": {"m": {**MODEL, "order": "deadline"}}},
    "two leases": {"models": {"m": {**MODEL, "lease_seconds": 1, "claim_lease_ttl_seconds": 2}}},
    "unknown provider": {"models": {"m": {**MODEL, "provider": "p"}}},
    "two defaults": {"models": {"m": {**MODEL, "default": True}, "n": {**MODEL, "default": True}}},
    "unknown stage": {"models": {"m": MODEL}, "pipelines": {"p": {"stages": ["m", "n"]}}},
    "unknown provider key": {"models": {"m": MODEL}, "providers": {"p": {"rpm": 1}}},
}


@pytest.mark.parametrize("case", WRONG)
def test_the_chart_refuses_what_the_services_would_refuse(case: str) -> None:
    with pytest.raises(ConfigurationError):
        _ = parse_config(yaml.safe_dump(WRONG[case]))
    with pytest.raises(Refused):
        _ = render(REDIS, WRONG[case])


def test_alerts_use_metrics_and_labels_that_exist() -> None:
    rules = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text("utf-8"))["groups"][0]["rules"]
    metrics = {metric.name: metric for metric in METRICS}
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        used = re.findall(r"\b((?:relayq|gatewai|async)_\w+)", rule["expr"])
        assert used, rule["alert"]
        for name in used:
            assert name in metrics, f"{rule['alert']}: {name}"
        asked = set(re.findall(r"(\w+)=~?\"", rule["expr"]))
        for group in re.findall(r"by \(([^)]*)\)", rule["expr"]):
            asked |= {label.strip() for label in group.split(",")}
        for name in asked - {"namespace", "pod"}:
            assert name in LABELS
            assert all(name in metrics[one].labels for one in used), f"{rule['alert']}: {name}"
        for shown in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert shown in asked, f"{rule['alert']} shows {shown}"
