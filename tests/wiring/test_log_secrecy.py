"""A whole stack at DEBUG, driven through good and bad times: its logs are JSON, name the job, and hold no secret."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

from queuecore.testing.clock import eventually
from queuecore.testing.s3_stub import PlannedFault, S3Stub, StubAnswer
from queuecore.testing.servers import ValkeyProcess, free_port

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(240)]

REDIS_PASSWORD: Final = "Passw0rd-of-redis/#@%:x"
KEY: Final = base64.b64encode(b"an-encryption-key-of-32-bytes--!").decode()
# Each is a text that must stand in no log, in whatever way it came in.
SECRETS: Final = {
    "redis password": REDIS_PASSWORD,
    "redis password, encoded": quote(REDIS_PASSWORD, safe=""),
    "encryption key": KEY,
    "storage key": "Secret-of-the-store-0123456789",
    "admin token": "Token-of-the-admin-port-012345",
    "wrong admin token": "Token-somebody-tries-012345",
    "bearer": "Bearer-of-a-client-0123456789",
    "api key": "Api-key-of-a-client-0123456789",
    "cookie": "Cookie-of-a-client-0123456789",
    "file": "Words-of-the-recording",
    "filename": "Name-of-the-patient",
    "form field": "Field-of-the-form",
    "params": "Member-of-the-params",
    "json input": "Input-of-the-chat",
    "query": "Param-of-the-query",
    "callback query": "Token-of-the-callback",
    "callback password": "Password-of-the-callback",
    "bad json": "Text-of-a-broken-body",
    "unknown query": "Value-nobody-asked-for",
}
CLIENT_HEADERS: Final = {
    "x-consumer": "tenant-1",
    "authorization": f"Bearer {SECRETS['bearer']}",
    "x-api-key": SECRETS["api key"],
    "cookie": f"session={SECRETS['cookie']}",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}


class Dev:
    """`relayq dev` and its logs."""

    def __init__(self, directory: Path, valkey: ValkeyProcess, store: S3Stub) -> None:
        self.logs = directory / "data" / "logs"
        self.gateway, self.admin = free_port(), free_port()
        self._output = directory / "dev.log"
        token = directory / "admin-token"
        _ = token.write_text(SECRETS["admin token"], "utf-8")
        self._directory = directory
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GATEWAY_", "RELAY"))},
            "REDIS_URL": f"redis://:{quote(REDIS_PASSWORD, safe='')}@127.0.0.1:{valkey.port}/0",
            "BLOBS_URL": f"s3://{store.bucket}/jobs",
            "S3_ENDPOINT_URL": store.url,
            "AWS_ACCESS_KEY_ID": "relayq",
            "AWS_SECRET_ACCESS_KEY": SECRETS["storage key"],
            "AWS_REGION": "us-east-1",
            "ENCRYPTION_KEYS": f"k1:{KEY}",
            "GATEWAY_ADMIN_TOKEN_FILE": str(token),
            "GATEWAY_AUTH": "header",
            "LOG_LEVEL": "DEBUG",
        }
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [
            str(Path(sys.executable).parent / "relayq"), "dev", "--data", str(self._directory / "data"),
            "--gateway-port", str(self.gateway), "--admin-port", str(self.admin), "--max-relays", "2",
        ]  # fmt: skip
        with self._output.open("w") as output:
            self._process = await asyncio.create_subprocess_exec(
                *command, env=self._environ, stdout=output, stderr=output
            )
        _ = await eventually(lambda: "is ready after" in self._output.read_text("utf-8"), within=60)

    async def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            _ = await asyncio.wait_for(self._process.wait(), 60)

    def written(self) -> dict[str, str]:
        """Everything that was logged or printed, by file."""
        files = [self._output, *self.logs.iterdir()]
        return {path.name: path.read_text("utf-8", "replace") for path in files}

    def lines(self, service: str) -> list[dict[str, Any]]:
        """What one service logged; each line must be JSON."""
        return [json.loads(line) for line in (self.logs / f"{service}.log").read_text("utf-8").splitlines()]


@pytest.fixture
def valkey() -> ValkeyProcess:
    return ValkeyProcess("--requirepass", REDIS_PASSWORD, appendonly="everysec")


@pytest.fixture
async def store() -> AsyncIterator[S3Stub]:
    async with S3Stub() as made:
        yield made


@pytest.fixture
async def dev(tmp_path: Path, valkey: ValkeyProcess, store: S3Stub) -> AsyncIterator[Dev]:
    with valkey:
        made = Dev(tmp_path, valkey, store)
        try:
            await made.start()
            yield made
        finally:
            await made.stop()


async def submit(client: httpx.AsyncClient, **fields: str) -> str:
    """A form with something recognisable in every place."""
    answer = await client.post(
        "/jobs/transcription",
        files={"file": (f"{SECRETS['filename']}.wav", SECRETS["file"].encode() * 100, "audio/wav")},
        data={
            "prompt": SECRETS["form field"],
            "params": json.dumps({"hotwords": SECRETS["params"]}),
            "callback_url": f"https://example.com/hook?token={SECRETS['callback query']}",
            **fields,
        },
    )
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job_id"])


async def ended(client: httpx.AsyncClient, job_id: str, service_type: str = "transcription") -> str:
    async def look() -> str | None:
        with contextlib.suppress(httpx.TransportError):
            answer = await client.get(f"/jobs/{service_type}/{job_id}")
            if answer.status_code == 200 and answer.json()["finished_at"]:
                return str(answer.json()["status"])
        return None

    found = await eventually(look, within=60, every=0.2)
    assert found is not None
    return found


async def test_no_log_of_a_stack_holds_a_secret_and_every_line_is_json(
    dev: Dev, valkey: ValkeyProcess, store: S3Stub
) -> None:
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{dev.gateway}", headers=CLIENT_HEADERS, timeout=30) as client,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{dev.admin}", timeout=30) as admin,
    ):
        # Good times, in every kind of submission.
        completed = await submit(client)
        assert await ended(client, completed) == "completed"
        assert (await client.get(f"/jobs/transcription/{completed}/result")).status_code == 200
        chat = await client.post(
            "/jobs/chat",
            json={
                "input": {"messages": [{"role": "user", "content": SECRETS["json input"]}]},
                "user": SECRETS["params"],
            },
        )
        assert await ended(client, chat.json()["job_id"], "chat") == "completed"
        raw = await client.post(
            f"/jobs/echo?note={SECRETS['query']}", content=SECRETS["file"], headers={"content-type": "text/plain"}
        )
        assert await ended(client, raw.json()["job_id"], "echo") == "completed"

        # What a client does wrong.
        headers = {"content-type": "application/json"}
        broken = [
            await client.post("/jobs/chat", content=f'{{"input": "{SECRETS["bad json"]}', headers=headers),
            await client.post("/jobs/chat", content=f'{{"input": 1, "params": "{SECRETS["bad json"]}"}}', headers=headers),
            await client.post("/jobs/echo", files={"file": ("a", b"a")}, data={"deadline": SECRETS["bad json"]}),
            await client.post("/jobs/echo", files={SECRETS["form field"]: (SECRETS["filename"], b"a")}),
            await client.post("/jobs/echo", files={"file": ("a", b"a")},
                              data={"callback_url": f"https://u:{SECRETS['callback password']}@example.com/"}),
            await client.get(f"/jobs?{SECRETS['unknown query']}={SECRETS['unknown query']}"),
            await client.get(f"/jobs/{SECRETS['unknown query']}/nothing"),
            await admin.get("/queues", headers={"authorization": f"Bearer {SECRETS['wrong admin token']}"}),
        ]  # fmt: skip
        assert {answer.status_code // 100 for answer in broken} == {4}

        # A model that fails, a relay that is killed, a job that is cancelled while it runs.
        failed = await submit(client, mock_status="500")
        assert await ended(client, failed) == "failed"
        admin.headers["authorization"] = f"Bearer {SECRETS['admin token']}"
        killed = await submit(client, mock_delay_seconds="30")

        async def owner() -> int | None:
            claims = (await admin.get("/queues/whisper-large-v3")).json()["claims"]
            return next((int(one["owner"].split(":")[1]) for one in claims if one["job_id"] == killed), None)

        pid = await eventually(owner, within=20)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        _ = await eventually(lambda: any(line["event"] == "job.reaped" for line in dev.lines("reaper")), within=20)
        _ = await client.delete(f"/jobs/transcription/{killed}")
        assert await ended(client, killed) == "cancelled"

        # A store that fails, and a Redis that goes away in the middle of a run.
        store.plan_always("PutObject", PlannedFault(StubAnswer(500, b"<Error><Code>InternalError</Code></Error>")))
        refused = await client.post("/jobs/echo", content=SECRETS["file"], headers={"content-type": "text/plain"})
        assert refused.status_code == 503
        store.plan_never("PutObject")
        cut = await submit(client, mock_delay_seconds="4")
        _ = await eventually(lambda: any(line.get("job_id") == cut for line in dev.lines("relay")), within=20)
        valkey.kill()
        away = await client.get(f"/jobs/transcription/{cut}")
        assert away.status_code == 503
        _ = valkey.start()
        assert await ended(client, cut) == "completed"

    await dev.stop()
    written = dev.written()
    assert {"gateway.log", "relay.log", "reaper.log", "mock.log"} <= written.keys() | {"mock.log"}
    leaks = {(what, name) for what, secret in SECRETS.items() for name, text in written.items() if secret in text}
    assert leaks == set()

    for service in ("gateway", "relay", "reaper"):
        lines = dev.lines(service)
        assert lines
        for line in lines:
            assert {"ts", "level", "service", "event", "message"} <= line.keys()
            assert line["service"] == service
    job_events = [line for service in ("gateway", "relay", "reaper") for line in dev.lines(service)
                  if line["event"].startswith("job.")]  # fmt: skip
    assert {line["event"] for line in job_events} >= {
        "job.submitted",
        "job.claimed",
        "job.completed",
        "job.failed",
        "job.reaped",
    }
    assert [line for line in job_events if not line.get("job_id")] == []
    told = [line for line in dev.lines("gateway") + dev.lines("relay") if line.get("job_id") == completed]
    assert {"job.submitted", "job.claimed", "job.completed"} <= {line["event"] for line in told}
    traced = {line["trace_id"] for line in told if line["event"].startswith("job.")}
    assert traced == {CLIENT_HEADERS["traceparent"].split("-")[1]}
