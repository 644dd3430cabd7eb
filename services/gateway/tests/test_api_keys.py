"""API keys, tenants, their budgets, and whose address counts (h14)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from gateway_stack import MakeStack, Stack
from starlette.requests import Request
from test_http_socket import connect, raw

from gateway import keyfile
from gateway.addresses import TrustedProxies
from gateway.keyfile import KeyFile
from queuecore.errors import ConfigurationError
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio
KEYS = {name: f"relayq_{name}" * 3 for name in ("a", "b", "reader", "urgent")}


def digest(name: str) -> str:
    return hashlib.sha256(KEYS[name].encode()).hexdigest()


FILE = f"""
tenants:
  a: {{requests_per_minute: 5, upload_bytes_per_day: 10}}
keys:
  - {{name: first, tenant: a, sha256: {digest("a")}}}
  - {{name: second, tenant: b, sha256: {digest("b")}}}
  - {{name: reader, tenant: b, sha256: {digest("reader")}, rights: [read]}}
  - {{name: urgent, tenant: b, sha256: {digest("urgent")}, rights: [submit, priority]}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    _ = path.write_text(FILE)
    return path


@pytest.fixture
def capped(path: Path) -> Path:
    _ = path.write_text(FILE.replace("requests_per_minute: 5, upload_bytes_per_day: 10", "pending_jobs: 2"))
    return path


@pytest.fixture
async def keyed(make_stack: MakeStack, path: Path) -> Stack:
    return await make_stack(auth="api-key", api_keys_file=str(path))


def of(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


def write(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink()
    else:
        _ = path.write_text(text)


async def submit(stack: Stack, name: str, content: bytes = b"x", query: str = "") -> Any:
    return await stack.client.post(f"/jobs/echo?model=large{query}", content=content, headers=of(name))


@requirement("tenant:key:others-jobs-are-404")
async def test_key_names_its_tenant_and_others_jobs_are_404(keyed: Stack) -> None:
    made = await submit(keyed, "a")
    path = made.headers["location"]

    assert made.status_code == 202
    assert (await keyed.client.get(path, headers=of("a"))).status_code == 200
    for answer in (
        await keyed.client.get(path, headers=of("b")),
        await keyed.client.get(f"{path}/result", headers=of("b")),
        await keyed.client.get(f"{path}/events", headers=of("b")),
        await keyed.client.delete(path, headers=of("b")),
        await keyed.client.delete(f"{path}/result", headers=of("b")),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
    assert (await keyed.client.get("/jobs", headers=of("b"))).json()["jobs"] == []


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic relayq_a", "Bearer \u00e9"])
async def test_no_key_and_wrong_keys_are_401(keyed: Stack, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    answer = await keyed.client.get("/models", headers=headers)  # pyright: ignore[reportArgumentType]

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@requirement("tenant:key:rights-kept")
async def test_rights_are_kept(keyed: Stack) -> None:
    refused = await submit(keyed, "reader")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert keyed.objects == {}
    assert (await keyed.client.get("/jobs", headers=of("reader"))).status_code == 200
    assert (await keyed.client.get("/jobs", headers=of("urgent"))).status_code == 403
    assert (await submit(keyed, "urgent", query="&priority=true")).json()["priority"] is True
    assert (await submit(keyed, "b", query="&priority=true")).json()["code"] == "priority_not_allowed"


@requirement("tenant:key:changed-without-restart")
async def test_keys_change_without_a_restart_and_a_broken_file_locks_nobody_out(
    keyed: Stack, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keyfile, "LOOK_SECONDS", 0)
    assert (await keyed.client.get("/models", headers=of("b"))).status_code == 200
    write(path, FILE.replace(digest("b"), "f" * 64))
    assert (await keyed.client.get("/models", headers=of("b"))).status_code == 401
    write(path, "keys: nonsense")
    assert (await keyed.client.get("/models", headers=of("reader"))).status_code == 200
    assert "were not read anew" in caplog.text
    write(path, None)
    assert (await keyed.client.get("/models", headers=of("reader"))).status_code == 200
    write(path, FILE)
    assert (await keyed.client.get("/models", headers=of("b"))).status_code == 200


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "GATEWAY_API_KEYS_FILE"), ("keys: {}", "GATEWAY_API_KEYS_FILE"), ("[", "GATEWAY_API_KEYS_FILE"),
        ("keys: [{name: n, tenant: t, sha256: x}]", "64 hexadecimal"),
        (f"keys: [{{name: n, tenant: 'a b', sha256: {'0' * 64!r}}}]", "tenant"),
        (f"keys: [{{name: n, tenant: t, sha256: {'0' * 64!r}, rights: [all]}}]", "rights"),
        (f"keys: [{{name: n, tenant: t, sha256: {'0' * 64!r}, key: secret}}]", "key"),
        (f"keys: [{{name: n, tenant: t, sha256: {'0' * 64!r}}}, {{name: m, tenant: t, sha256: {'0' * 64!r}}}]", "twice"),
        ("keys: []\ntenants: {t: {requests_per_minute: 0}}", "requests_per_minute"),
    ],
)  # fmt: skip
def test_file_that_breaks_a_rule_is_refused_and_the_rule_is_said(path: Path, text: str, word: str) -> None:
    _ = path.write_text(text)
    with pytest.raises(ConfigurationError, match="GATEWAY_API_KEYS_FILE") as raised:
        _ = KeyFile(str(path))
    assert word in str(raised.value)


@requirement("tenant:limit:requests-and-bytes")
async def test_tenants_have_their_requests_and_the_headers_say_what_is_left(keyed: Stack) -> None:
    answers = [await keyed.client.get("/models", headers=of("a")) for _ in range(6)]

    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    assert answers[0].headers["ratelimit-policy"] == '"requests";q=5;w=60'
    assert answers[0].headers["ratelimit"] == '"requests";r=4;t=60'
    assert answers[5].headers["ratelimit"] == '"requests";r=0;t=12'
    assert (answers[5].json()["code"], answers[5].headers["retry-after"]) == ("too_many_requests", "12")
    assert (await keyed.client.get("/models", headers=of("b"))).status_code == 200
    keyed.queue.clock.advance(12_000)
    assert (await keyed.client.get("/models", headers=of("a"))).status_code == 200


@requirement("submit:submit:tenant-cap")
async def test_tenants_have_their_pending_jobs_in_each_queue(make_stack: MakeStack, capped: Path) -> None:
    stack = await make_stack(auth="api-key", api_keys_file=str(capped))
    for _ in range(2):
        assert (await submit(stack, "a")).status_code == 202

    refused = await submit(stack, "a")

    assert (refused.status_code, refused.json()["code"]) == (429, "tenant_queue_full")
    assert int(refused.headers["retry-after"]) > 0
    assert len(stack.objects) == 2, "the refused upload is gone"
    assert (await submit(stack, "b")).status_code == 202


@requirement("tenant:limit:requests-and-bytes")
async def test_tenants_have_their_bytes(keyed: Stack) -> None:
    assert (await submit(keyed, "a", b"x" * 12)).status_code == 202

    refused = await submit(keyed, "a", b"x")

    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_bytes")
    assert int(refused.headers["retry-after"]) == 17_280  # two tenths of a day
    assert len(keyed.objects) == 1


# -- whose address counts ---------------------------------------------------------------------------------------


def request(peer: str, *forwarded: str) -> Request:
    headers = [(b"x-forwarded-for", one.encode()) for one in forwarded]
    return Request({"type": "http", "client": (peer, 1), "headers": headers})


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "address"),
    [
        ("", "10.0.0.1", ["203.0.113.9"], "10.0.0.1"),
        ("10.0.0.0/8", "192.0.2.1", ["203.0.113.9"], "192.0.2.1"),
        ("10.0.0.0/8", "10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.0/8", "10.0.0.1", ["1.1.1.1, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.0/8", "10.0.0.1", ["1.1.1.1", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.0/8", "10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.0/8, ::1", "::1", ["nonsense"], "nonsense"),
    ],
)
def test_forwarded_addresses_count_only_from_trusted_proxies(
    trusted: str, peer: str, forwarded: list[str], address: str
) -> None:
    assert TrustedProxies(trusted).address(request(peer, *forwarded)) == address


@requirement("tenant:address:spoof-changes-nothing")
async def test_spoofed_address_does_not_change_the_limiters_key(make_stack: MakeStack, path: Path) -> None:
    stack = await make_stack(auth="api-key", api_keys_file=str(path))
    wire = await connect(stack)
    await wire.send(raw("h14_forwarded_for_spoof"))
    assert (await wire.answer())[0] == 401
    assert set(stack.queue.buckets.levels) == {"address:127.0.0.1:failures"}

    behind = await make_stack(auth="api-key", api_keys_file=str(path), trusted_proxies="127.0.0.1")
    wire = await connect(behind)
    await wire.send(raw("h14_forwarded_for_spoof"))
    assert (await wire.answer())[0] == 401
    assert set(behind.queue.buckets.levels) == {"address:203.0.113.9:failures"}


async def test_guessing_keys_ends_in_429(keyed: Stack) -> None:
    answers = [(await keyed.client.get("/models")).status_code for _ in range(61)]

    assert answers == [401] * 60 + [429]
    assert (await keyed.client.get("/models", headers=of("b"))).status_code == 200


async def test_tenants_header_is_believed_only_from_trusted_proxies_once_there_are_any(make_stack: MakeStack) -> None:
    inside = await make_stack(auth="header", trusted_proxies="127.0.0.1")
    outside = await make_stack(auth="header", trusted_proxies="10.0.0.0/8")

    assert (await inside.client.get("/models", headers={"x-consumer": "a"})).status_code == 200
    assert (await outside.client.get("/models", headers={"x-consumer": "a"})).status_code == 401


def test_proxies_that_are_no_addresses_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="GATEWAY_TRUSTED_PROXIES"):
        _ = TrustedProxies("proxy.example")
