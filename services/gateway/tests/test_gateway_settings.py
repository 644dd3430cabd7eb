"""The environment: names, defaults and bounds of the interface; what may not be combined is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.addresses import TrustedProxies
from gateway.admin import read_token
from gateway.auth import authenticator
from gateway.settings import GatewaySettings, is_loopback
from queuecore.errors import ConfigurationError
from queuecore.settings import describe, read_settings


def read(**environ: str) -> GatewaySettings:
    return read_settings(GatewaySettings, {f"GATEWAY_{name.upper()}": value for name, value in environ.items()})


def test_defaults_are_those_of_the_interface() -> None:
    settings = read()

    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert (settings.admin_host, settings.admin_port, settings.admin_token_file) == ("127.0.0.1", 8081, "")
    assert (settings.metrics_host, settings.metrics_port) == ("127.0.0.1", 9101)
    assert (settings.auth, settings.tenant_header, settings.priority_header) == ("api-key", "X-Consumer", "")
    assert settings.max_upload_bytes == 1_073_741_824
    assert settings.accept_seed_completions is False


@pytest.mark.parametrize(
    "name",
    ["API_KEYS_FILE", "WEBHOOK_SECRETS_FILE", "WEBHOOK_ALLOW", "RESULT_TTL_SECONDS", "DEADLETTER_TTL_SECONDS",
     "TOMBSTONE_TTL_SECONDS", "PENDING_MAX_AGE_SECONDS"],
)  # fmt: skip
def test_variables_of_the_interface_that_another_part_reads_are_known(name: str) -> None:
    _ = read(**{name: "1"})


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"prot": "1"}, "GATEWAY_PORT"),
        ({"port": "65536"}, "GATEWAY_PORT"),
        ({"port": "tcp://10.0.0.1:80"}, "GATEWAY_PORT"),
        ({"auth": "basic"}, "GATEWAY_AUTH"),
        ({"auth": "none", "host": "0.0.0.0"}, "GATEWAY_ALLOW_ANONYMOUS"),
        ({"auth": "none", "host": "::"}, "GATEWAY_ALLOW_ANONYMOUS"),
        ({"admin_host": "0.0.0.0"}, "GATEWAY_ADMIN_TOKEN_FILE"),
        ({"max_upload_bytes": "0"}, "GATEWAY_MAX_UPLOAD_BYTES"),
        ({"tenant_header": "a b"}, "GATEWAY_TENANT_HEADER"),
        ({"priority_header": "x:y"}, "GATEWAY_PRIORITY_HEADER"),
        ({"priority_header": "x-consumer"}, "same header"),
        ({"upload_idle_seconds": "0"}, "GATEWAY_UPLOAD_IDLE_SECONDS"),
    ],
)
def test_wrong_setting_stops_the_start_and_is_named(environ: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        _ = read(**environ)


def test_every_variable_becomes_the_type_its_field_declares() -> None:
    made = read(webhook_secrets_file="/secrets", allow_anonymous="TRUE")

    assert made.webhook_secrets_file == "/secrets"
    assert made.allow_anonymous is True


def test_anonymous_access_off_loopback_needs_to_be_said() -> None:
    assert read(auth="none", host="0.0.0.0", allow_anonymous="true").allow_anonymous
    assert read(auth="none", host="localhost").auth == "none"
    assert read(auth="header", host="0.0.0.0").auth == "header"


def test_api_keys_need_their_file() -> None:
    with pytest.raises(ConfigurationError, match="GATEWAY_AUTH: api-key needs GATEWAY_API_KEYS_FILE"):
        _ = authenticator(read(), TrustedProxies(""))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("10.0.0.1", False), ("localhost.evil.example", False), ("", False), ("127.0.0.1.nip.io", False)],
)  # fmt: skip
def test_loopback_is_known(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_every_setting_is_described() -> None:
    for variable, _, description in describe(GatewaySettings):
        assert description, variable


@pytest.mark.parametrize("text", ["", "short", "with a space in it", "sch\u00f6nes-langes-token"])
def test_admin_token_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    _ = path.write_text(text, "utf-8")

    with pytest.raises(ConfigurationError, match="GATEWAY_ADMIN_TOKEN_FILE"):
        _ = read_token(str(path))
    with pytest.raises(ConfigurationError, match="GATEWAY_ADMIN_TOKEN_FILE"):
        _ = read_token(str(tmp_path / "missing"))
