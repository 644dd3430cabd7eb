"""Secrets: every character arrives, nothing is made up, pods are replaced when what they read changes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import ConstantBackoff, NoBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from chart.rendering import DATA, REDIS, containers, environment, find, one, pod_templates, render, render_text
from queuecore.settings import CommonSettings, read_settings
from queuecore.testing.servers import free_port, server_binary

PASSWORDS = [entry["password"] for entry in json.loads((DATA / "redis_passwords.json").read_text("utf-8"))]
ODD = "p#s/s@w:r%41d ?&[]'\"$"
GIVEN = [password for password in [*PASSWORDS, ODD, "--requirepass", "two\nlines", " edges "] if password]


@pytest.mark.parametrize("password", GIVEN)
def test_a_password_reaches_every_process_and_keda_unchanged(password: str) -> None:
    documents = render(REDIS, {"redis": {"auth": {"password": password}}})
    services = [one for one in containers(documents) if one.name != "inference"]

    assert {service.name for service in services} == {"gateway", "reaper", "relay"}
    for service in services:
        environ = environment(service, documents)
        assert read_settings(CommonSettings, environ).redis_password.reveal() == password
        assert password not in environ["REDIS_URL"] or password == "1e6"
    (reference,) = one(documents, "TriggerAuthentication", "prod-redis")["spec"]["secretTargetRef"]
    relay = next(service for service in services if service.name == "relay")
    (read,) = [entry for entry in relay.spec["env"] if entry["name"] == "REDIS_PASSWORD"]
    assert read["valueFrom"]["secretKeyRef"] == {"name": reference["name"], "key": reference["key"]}


def test_no_password_is_no_secret_and_no_authentication() -> None:
    documents = render(REDIS, {"redis": {"auth": {"password": ""}}})

    assert not find(documents, "Secret")
    assert not find(documents, "TriggerAuthentication")
    for container in containers(documents):
        assert not {"REDIS_PASSWORD", "REDIS_USERNAME"} & environment(container, documents).keys()


@pytest.mark.parametrize("valkey", [{}, {"redis": {"url": ""}, "valkey": {"enabled": True}}])
def test_a_secret_of_the_user_is_read_and_none_is_made(valkey: dict[str, Any]) -> None:
    values = {
        "redis": {"auth": {"existingSecret": "my-redis", "existingSecretPasswordKey": "pw"}},
        "encryption": {"existingSecret": "my-keys"},
    }
    documents = render(REDIS, values, valkey)
    theirs = {"my-redis": {"pw": ODD}}

    assert not find(documents, "Secret")
    (reference,) = one(documents, "TriggerAuthentication", "prod-redis")["spec"]["secretTargetRef"]
    assert reference == {"parameter": "password", "name": "my-redis", "key": "pw"}
    for container in containers(documents):
        if container.name != "inference":
            assert environment(container, documents, theirs)["REDIS_PASSWORD"] == ODD


SECRET_CHANGES = {
    "redis password": {"redis": {"auth": {"password": "other"}}},
    "s3 key": {"blobs": {"s3": {"auth": {"secretAccessKey": "other"}}}},
    "encryption keys": {"encryption": {"keys": "k2:other"}},
    "models": {"models": {"m": {"service_type": "chat", "operations": {"complete": "/v1/other"}}}},
}
BASE: dict[str, Any] = {
    "redis": {**REDIS["redis"], "auth": {"password": "x"}},
    "blobs": {"url": "s3://bucket/p", "s3": {"auth": {"accessKeyId": "a", "secretAccessKey": "b"}}},
    "encryption": {"keys": "k1:first"},
    "models": {
        "m": {"service_type": "chat", "operations": {"complete": "/v1/x"}},
        "n": {"service_type": "chat", "operations": {"complete": "/v1/x"}, "scaling": {"kind": "ScaledObject"}},
    },
}


@pytest.mark.parametrize("change", SECRET_CHANGES)
def test_a_change_replaces_every_pod_that_reads_it(change: str) -> None:
    before, after = (
        {owner: template["metadata"]["annotations"] for owner, template in pod_templates(render(BASE, extra))}
        for extra in ({}, SECRET_CHANGES[change])
    )
    assert before.keys() == after.keys()
    assert len(before) == 4, "gateway, reaper, and a relay of each kind"
    assert {owner for owner in before if before[owner] == after[owner]} == set()


def test_a_change_of_one_users_password_leaves_the_others_alone() -> None:
    users = {"redis": {"users": {"reaper": {"password": "a"}}}}
    other = {"redis": {"users": {"reaper": {"password": "b"}}}}
    before, after = (
        {owner: template["metadata"]["annotations"] for owner, template in pod_templates(render(BASE, extra))}
        for extra in (users, other)
    )
    assert [owner for owner in before if before[owner] != after[owner]] == ["Deployment/prod-reaper"]


@pytest.mark.parametrize("values", [REDIS, BASE, {"valkey": {"enabled": True}}], ids=["plain", "secrets", "valkey"])
def test_rendering_twice_gives_the_same_text(values: dict[str, Any]) -> None:
    assert render_text(values) == render_text(values)


class BundledValkey:
    """The StatefulSet's own command, run here: paths and port are the test's, the rest is the chart's."""

    def __init__(self, values: dict[str, Any], directory: Path) -> None:
        documents = render({"valkey": {"enabled": True}}, values)
        (container,) = [container for container in containers(documents) if container.name == "valkey"]
        self.environ = environment(container, documents)
        self.port = free_port()
        self._command = [
            part.replace("/tmp/", f"{directory}/").replace("/data", str(directory)).replace(
                "valkey-server ", f"{server_binary()} --port {self.port} --bind 127.0.0.1 "
            )
            for part in container.spec["command"]
        ]  # fmt: skip

    @contextlib.contextmanager
    def running(self) -> Generator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            self._command, env={**os.environ, **self.environ}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            _ = process.communicate(timeout=10)

    def wait(self) -> None:
        """Until it takes connections, at most 20 s."""
        patience = Retry(ConstantBackoff(0.02), 1000, supported_errors=(ConnectionRefusedError,))
        address = ("127.0.0.1", self.port)
        patience.call_with_retry(lambda: socket.create_connection(address, timeout=5).close(), lambda _: None)

    def client(self, username: str | None, password: str | None) -> Redis:
        return Redis(port=self.port, username=username, password=password, retry=Retry(NoBackoff(), 0))


@pytest.mark.parametrize("password", GIVEN)
def test_the_bundled_valkey_takes_just_that_password(password: str, tmp_path: Path) -> None:
    valkey = BundledValkey({"redis": {"auth": {"password": password}}}, tmp_path)
    with valkey.running():
        valkey.wait()
        assert valkey.client(None, password).ping()
        assert valkey.client(None, password).config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        for wrong in ("", password + "x", None):
            with pytest.raises(AuthenticationError):
                _ = valkey.client(None, wrong).ping()


def test_the_bundled_valkey_lets_only_the_named_user_in(tmp_path: Path) -> None:
    valkey = BundledValkey({"redis": {"auth": {"username": "app", "password": ODD}}}, tmp_path)
    with valkey.running():
        valkey.wait()
        assert valkey.client("app", ODD).ping()
        with pytest.raises(AuthenticationError):
            _ = valkey.client(None, ODD).ping()


def test_the_bundled_valkey_does_not_start_on_the_placeholder(tmp_path: Path) -> None:
    valkey = BundledValkey({}, tmp_path)
    with valkey.running() as process:
        output, _ = process.communicate(timeout=10)
        assert process.returncode == 1
        assert b"redis.auth.password" in output
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", valkey.port), timeout=1):
        pass
