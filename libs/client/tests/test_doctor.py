"""What doctor finds: on facts, and on a real Valkey with little rights and a bad policy."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queuecore.broker import QueueCounts, ServerFacts
from queuecore.redis.diagnosis import Diagnosis, diagnose
from queuecore.settings import CommonSettings, Secret
from queuecore.storage import open_store
from queuecore.testing.servers import ValkeyProcess
from relayq.doctor import Finding, examine, queue_findings, reaper_finding, server_findings

pytestmark = pytest.mark.anyio

GOOD = ServerFacts("run", "9.1.2", "noeviction", appendonly=True, appendfsync="always")
FREE = Diagnosis({}, {}, 10, 0)


def levels(facts: ServerFacts, diagnosis: Diagnosis = FREE) -> dict[str, tuple[str, str]]:
    return {finding.check: (finding.level, finding.text) for finding in server_findings(facts, diagnosis)}


@pytest.mark.parametrize(
    ("version", "level"), [("7.0.0", "ok"), ("9.1.2", "ok"), ("10.0", "ok"), ("6.2.14", "problem"), ("", "warning")]
)
def test_old_servers_are_a_problem(version: str, level: str) -> None:
    assert levels(GOOD._replace(version=version))["version"][0] == level


@pytest.mark.parametrize(
    ("policy", "level"),
    [("noeviction", "ok"), ("allkeys-lru", "problem"), ("volatile-ttl", "problem"), ("", "warning")],
)
def test_a_policy_that_evicts_is_a_problem(policy: str, level: str) -> None:
    assert levels(GOOD._replace(maxmemory_policy=policy))["eviction"][0] == level


@pytest.mark.parametrize(
    ("appendonly", "appendfsync", "level", "words"),
    [
        (True, "always", "ok", "no window"),
        (True, "everysec", "ok", "last second"),
        (True, "no", "warning", "kernel"),
        (True, "", "warning", "hides"),
        (False, "everysec", "warning", "loses every job since its last snapshot"),
        (None, "", "warning", "does not say"),
    ],
)
def test_the_loss_window_is_said(appendonly: bool | None, appendfsync: str, level: str, words: str) -> None:
    found = levels(GOOD._replace(appendonly=appendonly, appendfsync=appendfsync))["persistence"]
    assert found[0] == level
    assert words in found[1]


def test_full_memory_and_missing_rights_are_warnings_and_no_eval_is_a_problem() -> None:
    diagnosis = Diagnosis({"CLIENT LIST": "slow", "EVAL": "nothing works"}, None, 90, 100)
    found = server_findings(GOOD, diagnosis)
    assert [(f.level, f.next) for f in found if f.check == "rights"] == [
        ("warning", "ACL SETUSER … +client|list"),
        ("problem", "ACL SETUSER … +eval"),
    ]
    assert [f.level for f in found if f.check == "memory"] == ["warning"]


def test_a_queue_says_what_keda_sees_and_what_it_does_not() -> None:
    counts = QueueCounts(pending=2, processing=1, paused=4, deadletter=3, paused_reason="breaker")
    depths, paused, dead = queue_findings("whisper", counts)
    assert "2 in relay:whisper:pending and 1 in relay:whisper:processing" in depths.text
    assert "hidden from it: 4 paused" in depths.text
    assert (paused.level, paused.next) == ("warning", "relayq resume whisper")
    assert (dead.level, dead.next) == ("warning", "relayq deadletter list whisper")


def test_a_missing_reaper_is_a_problem_unless_nobody_can_see() -> None:
    assert reaper_finding(Diagnosis({}, {"relayq-reaper": 3}, None, None), 0).level == "ok"
    assert reaper_finding(Diagnosis({}, {"relayq-gateway": 3}, None, None), 2).level == "problem"
    assert reaper_finding(Diagnosis({}, None, None, None), 2).level == "warning"


@pytest.mark.redis
async def test_rights_are_tried_as_the_user_that_the_services_use() -> None:
    with ValkeyProcess(
        "--user", "default", "on", "nopass", "~*", "&*", "+@all", "-client|unblock", "-config"
    ) as server:
        found = await diagnose(CommonSettings(redis_url=Secret(server.url)))
    assert list(found.forbidden) == ["CLIENT UNBLOCK", "CONFIG GET"]
    assert found.clients == {"relayq-doctor": 1}
    assert found.used_memory_bytes


MODELS = "models: {echo: {service_type: echo, operations: {echo: /echo}}}"


async def findings(environ: dict[str, str]) -> list[Finding]:
    return [finding async for finding in examine(environ, "http://127.0.0.1:1")]


@pytest.mark.redis
async def test_a_bad_server_and_no_gateway_are_found_with_the_next_step(tmp_path: Path) -> None:
    models = tmp_path / "models.yaml"
    _ = models.write_text(MODELS, "utf-8")
    with ValkeyProcess("--maxmemory-policy", "allkeys-lru") as server:
        found = await findings(
            {"REDIS_URL": server.url, "BLOBS_URL": f"file://{tmp_path}/blobs", "MODELS_FILE": str(models)}
        )
    problems = {finding.check: finding for finding in found if finding.level == "problem"}
    assert set(problems) == {"eviction", "reaper", "gateway"}
    assert all(finding.next for finding in problems.values())
    good = {finding.check for finding in found if finding.level == "ok"}
    assert good >= {"models", "redis", "version", "rights", "clock", "queues", "store", "encryption"}


async def test_what_cannot_be_reached_or_read_is_a_finding_and_no_traceback(tmp_path: Path) -> None:
    (wrong,) = await findings({"REDIS_URL": "http://x"})
    assert (wrong.check, wrong.level) == ("environment", "problem")
    assert "REDIS_URL" in wrong.text

    found = await findings(
        {"REDIS_URL": "redis://127.0.0.1:1/0", "BLOBS_URL": "file://relative", "MODELS_FILE": str(tmp_path / "none")}
    )
    assert {finding.check for finding in found if finding.level == "problem"} == {"models", "redis", "store", "gateway"}


async def test_objects_are_counted_by_the_key_that_encrypted_them(tmp_path: Path) -> None:
    old, new = (f"{name}:{base64.b64encode(os.urandom(32)).decode()}" for name in ("k1", "k2"))
    blobs = f"file://{tmp_path}/blobs"

    async def put(keys: str, *names: str) -> None:
        store = await open_store(CommonSettings(blobs_url=blobs, encryption_keys=Secret(keys)))
        for name in names:
            _ = await store.put(f"01890a5d-ac96-774b-bcce-b302099a8057/{name}", once(b"data"))
        await store.aclose()

    await put(old, "a", "b")
    await put(f"{new}\n{old}", "c")
    await put("", "plain")

    async def texts(keys: str) -> list[tuple[str, str]]:
        environ = {"REDIS_URL": "redis://127.0.0.1:1/0", "BLOBS_URL": blobs, "ENCRYPTION_KEYS": keys}
        return [(f.level, f.text) for f in await findings(environ) if f.check == "encryption"]

    both = await texts(f"{new}\n{old}")
    assert both[:2] == [("ok", "2 objects with key k1 (older)"), ("ok", "1 objects with key k2 (current)")]
    assert both[2][0] == "warning"
    assert "1 objects are not encrypted" in both[2][1]
    alone = await texts(new)
    assert ("problem", "2 objects with key k1, which is not in the ring") in alone


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data
