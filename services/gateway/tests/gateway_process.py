"""`python -m gateway` as a process of its own, for tests that kill it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil

from queuecore.broker import Broker
from queuecore.config import load_config
from queuecore.redis import open_redis
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import eventually
from queuecore.testing.servers import ValkeyProcess, free_port

MODELS = "models: {echo: {service_type: echo, operations: {echo: /echo}}}"


class Process:
    """A running gateway."""

    def __init__(self, child: asyncio.subprocess.Process, ports: dict[str, int]) -> None:
        self.child = child
        self.public = f"http://127.0.0.1:{ports['PORT']}"
        self.admin = f"http://127.0.0.1:{ports['ADMIN_PORT']}"
        self.metrics = f"http://127.0.0.1:{ports['METRICS_PORT']}"
        self.client = httpx.AsyncClient(base_url=self.public, timeout=30)

    async def ready(self) -> None:
        async def probe() -> bool:
            try:
                return (await self.client.get("/health/ready")).status_code == 200
            except httpx.TransportError:
                return False

        assert await eventually(probe, within=20)

    async def ended(self, within: float = 15) -> tuple[int, str]:
        """Exit code and output."""
        async with asyncio.timeout(within):
            output, _ = await self.child.communicate()
        assert self.child.returncode is not None
        return self.child.returncode, output.decode()

    def rss(self) -> int:
        return psutil.Process(self.child.pid).memory_info().rss


@asynccontextmanager
async def gateway(directory: Path, redis_url: str, **environ: str) -> AsyncGenerator[Process, None]:
    """Started, not waited for; killed at the end if it still runs."""
    _ = (directory / "models.yaml").write_text(MODELS)
    ports = {name: free_port() for name in ("PORT", "ADMIN_PORT", "METRICS_PORT")}
    given = {
        "PATH": os.environ["PATH"],
        "REDIS_URL": redis_url,
        "BLOBS_URL": f"file://{directory}/blobs",
        "MODELS_FILE": str(directory / "models.yaml"),
        "GATEWAY_AUTH": "none",
        **{f"GATEWAY_{name}": str(port) for name, port in ports.items()},
        **environ,
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "gateway",
        env={name: value for name, value in given.items() if value}, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    process = Process(child, ports)
    try:
        yield process
    finally:
        await process.client.aclose()
        if child.returncode is None:
            child.kill()
        _ = await child.communicate()


@asynccontextmanager
async def queue_of(directory: Path, server: ValkeyProcess) -> AsyncGenerator[Broker, None]:
    """The same queue from outside, as a relay has it."""
    config = load_config(str(directory / "models.yaml"))
    queue = await open_redis(CommonSettings(redis_url=Secret(server.url)), name="test")
    try:
        yield queue.broker("echo", config.models["echo"])
    finally:
        await queue.aclose()
