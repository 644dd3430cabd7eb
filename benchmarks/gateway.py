"""One gateway process: requests a second, and files up and down with the memory they take.

Requests by wrk (https://github.com/wg/wrk) over 32 connections: a submission of 200 bytes (a file stored, encrypted,
and a job queued), a status document, and the liveness page, which is what the HTTP server alone can do. Files of 256 MB
on a directory store, encrypted, over the loopback. Everything shares this machine.
"""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx

from queuecore.broker import Result, Worker
from queuecore.clock import monotonic
from queuecore.job import result_key
from queuecore.names import new_claim_id
from queuecore.settings import CommonSettings, Secret
from queuecore.storage import open_store
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock, Yard

SECONDS: Final = 5
CONNECTIONS: Final = 32
MEGABYTES: Final = 256
BLOCK: Final = bytes(range(256)) * 1024
POST: Final = """
wrk.method = "POST"
wrk.body = string.rep("x", 200)
wrk.headers["Content-Type"] = "application/octet-stream"
"""


def requests_per_second(url: str, script: Path | None = None) -> float:
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", *(["-s", str(script)] if script else []), url]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wrong = re.search(r"Non-2xx or 3xx responses: (\d+)", printed)
    assert not wrong, f"{url}: {wrong[0] if wrong else ''}"
    found = re.search(r"Requests/sec:\s+([\d.]+)", printed)
    assert found, printed
    return float(found[1])


def peak_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


async def blocks() -> AsyncIterator[bytes]:
    for _ in range(MEGABYTES * 4):
        yield BLOCK


async def files(yard: Yard) -> tuple[float, float, float]:
    """(upload MB/s, download MB/s, peak MB of the gateway's memory), on a gateway of its own."""
    gateway = await yard.gateway()
    async with httpx.AsyncClient(base_url=gateway.url, timeout=300) as http:
        began = monotonic()
        answer = await http.post("/jobs/echo", content=blocks(), headers={"content-type": "application/octet-stream"})
        up = MEGABYTES / (monotonic() - began)
        assert answer.status_code == 202, answer.text
        claim = await yard.broker.claim(Worker("w"), new_claim_id())
        assert claim is not None
        key = result_key(claim.job_id, claim.fence, claim.claim_id)
        _ = await yard.store.put(key, blocks())
        _ = await yard.broker.complete(claim, Result(key, MEGABYTES << 20, "application/octet-stream", ""))
        began, received = monotonic(), 0
        async with http.stream("GET", f"/jobs/echo/{claim.job_id}/result") as result:
            assert result.status_code == 200
            async for chunk in result.aiter_raw(1 << 20):
                received += len(chunk)
        down = MEGABYTES / (monotonic() - began)
        assert received == MEGABYTES << 20
    return up, down, peak_megabytes(gateway.pid)


async def measured(server: ValkeyProcess, mock: Mock, directory: Path) -> None:
    environ = {
        "BLOBS_URL": (directory / "blobs").as_uri(),
        "ENCRYPTION_KEYS": f"k1:{base64.b64encode(bytes(32)).decode()}",
    }
    store = await open_store(
        CommonSettings(blobs_url=environ["BLOBS_URL"], encryption_keys=Secret(environ["ENCRYPTION_KEYS"]))
    )
    yard = Yard(server, mock, directory, store=(store, environ))
    up, down, peak = await files(yard)
    print("| one gateway process | |")
    print("|---|---:|")
    print(f"| upload MB/s, {MEGABYTES} MB encrypted | {up:.0f} |")
    print(f"| download MB/s | {down:.0f} |")
    print(f"| peak memory MB | {peak:.0f} |")
    if shutil.which("wrk") is None:
        print("\nRequests a second are not measured: there is no wrk on this machine (apt install wrk).")
    else:
        url, job_id = (await yard.gateway()).url, await yard.submit()
        for what, path, script in (
            (f"submissions/s, {CONNECTIONS} connections", "/jobs/echo", directory / "post.lua"),
            ("status documents/s", f"/jobs/echo/{job_id}", None),
            ("liveness answers/s (the server alone)", "/health/live", None),
        ):
            print(f"| {what} | {await asyncio.to_thread(requests_per_second, url + path, script):,.0f} |")
    await yard.aclose()
    await store.aclose()


def main() -> None:
    with ValkeyProcess() as server, Mock() as mock, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "blobs").mkdir()
        _ = (directory / "post.lua").write_text(POST, "utf-8")
        asyncio.run(measured(server, mock, directory))


if __name__ == "__main__":
    main()
