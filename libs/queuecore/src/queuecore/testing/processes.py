"""Processes of tests: the mock model, and services with their log, signals, exit code and port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Self

from queuecore.testing.clock import eventually
from queuecore.testing.servers import free_port


class Mock:
    """The mock-inference service as a process."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For RELAY_INFERENCE_URL."""
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> bytes:
        """The body of a GET."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=5) as answer:  # noqa: S310  our own loopback URL
            return answer.read()

    async def requests(self, after: int = 0) -> list[dict[str, Any]]:
        """The journal's entries whose id is greater: ``id``, ``job_id``, ``state`` and more (docs of the mock)."""
        return json.loads(await asyncio.to_thread(self.get, f"/journal?after={after}"))["requests"]

    async def runs(self, after: int = 0) -> Counter[str]:
        """How often the model was asked for each job."""
        return Counter(str(request["job_id"]) for request in await self.requests(after))

    def __enter__(self) -> Self:
        environment = os.environ | {"MOCK_PORT": str(self.port), "MOCK_HOST": "127.0.0.1"}
        self._process = subprocess.Popen([sys.executable, "-m", "mock_inference"], env=environment)
        end = time.monotonic() + 15
        while time.monotonic() < end:
            with contextlib.suppress(OSError, urllib.error.URLError):
                _ = self.get("/health")
                return self
            time.sleep(0.02)
        raise RuntimeError("the mock does not answer")

    def __exit__(self, *_exit: object) -> None:
        if self._process is not None:
            self._process.kill()
            _ = self._process.wait(5)


class Process:
    """A service process of the yard."""

    def __init__(self, inner: asyncio.subprocess.Process, log: Path) -> None:
        self._inner = inner
        self.log = log

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._inner.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._inner.returncode is None

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its log so far, a half-written last line apart."""
        return [json.loads(line) for line in self.log.read_text("utf-8").splitlines() if line[:1] + line[-1:] == "{}"]

    @property
    def events(self) -> list[str]:
        """The ``event`` of each line."""
        return [line["event"] for line in self.lines]

    async def said(self, event: str, within: float = 30) -> dict[str, Any]:
        """The first line with this event, once it is there; an assertion with the log if the process ends before."""

        def look() -> dict[str, Any] | None:
            ended = not self.running
            found = next((line for line in self.lines if line["event"] == event), None)
            assert found or not ended, f"it ended without {event}: {self.log.read_text('utf-8')}"
            return found

        found = await eventually(look, within=within)
        assert found is not None
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send it, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._inner.send_signal(number)

    async def go_on(self) -> None:
        """Let a process that waits at a fault point continue."""
        assert self._inner.stdin is not None
        self._inner.stdin.write(b"\n")
        await self._inner.stdin.drain()

    async def ended(self, within: float = 30) -> int:
        """Its exit code; negative is a signal."""
        async with asyncio.timeout(within):
            code = await self._inner.wait()
        if self._inner.stdin is not None:
            self._inner.stdin.close()
        return code


class Served(Process):
    """A process with a port: the gateway's public one, the reaper's for metrics."""

    url: str

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET; (0, "") when nobody answers."""
        return await asyncio.to_thread(_get, f"{self.url}{path}")

    async def ready(self, within: float = 30) -> Self:
        """Once `/health/ready` answers 200."""

        async def look() -> bool:
            assert self.running, self.log.read_text("utf-8")
            return (await self.get("/health/ready"))[0] == 200  # noqa: PLR2004  OK

        _ = await eventually(look, within=within, every=0.05)
        return self


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  our own loopback URL
            return int(answer.status), str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""
