"""A reaper in this process over any queue; a real server with reapers and owners as processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from queuecore.blobs import BlobStore
from queuecore.broker import Broker, NewJob, Server, Signals
from queuecore.config import ModelConfig
from queuecore.redis import RedisQueue
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import eventually
from queuecore.testing.servers import ValkeyProcess, free_port
from reaper.settings import ReaperSettings
from reaper.upkeep import Upkeep

Running = Callable[..., AbstractAsyncContextManager[Upkeep]]
MODEL = "m"


@pytest.fixture
def running() -> Running:
    """``async with running(brokers, queue.server, queue.signals, store=…, **settings) as upkeep``."""

    @asynccontextmanager
    async def run(
        brokers: Sequence[Broker],
        server: Server,
        signals: Signals,
        *,
        store: BlobStore | None = None,
        interval_seconds: float = 0.05,
        death_grace_seconds: float = 0.2,
        orphan_min_age_seconds: int = 3600,
    ) -> AsyncGenerator[Upkeep, None]:
        settings = ReaperSettings(
            interval_seconds=interval_seconds,
            death_grace_seconds=death_grace_seconds,
            orphan_min_age_seconds=orphan_min_age_seconds,
        )
        upkeep = Upkeep(settings, brokers, server=server, signals=signals, store=store)
        stop = asyncio.Event()
        task = asyncio.create_task(upkeep.run(stop))
        try:
            yield upkeep
            assert not task.done(), "the reaper is still running"
        finally:
            stop.set()
            await asyncio.wait_for(task, 10)

    return run


@pytest.fixture
def sample() -> Callable[..., float]:
    """The value of a metric now: ``sample("name", model="m")``."""

    def read(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(name, labels) or 0.0

    return read


class Process:
    """A child whose output goes to a file."""

    def __init__(self, log: Path, arguments: Sequence[str], **environ: str) -> None:
        self.log = log
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("REAPER_", "REDIS_"))}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT, env=clean | environ
            )

    @property
    def output(self) -> str:
        return self.log.read_text("utf-8")

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send the signal and give the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(number)
            _ = await eventually(lambda: self._process.poll() is not None, within=10)
        return int(self._process.returncode)

    def clean_up(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        _ = self._process.wait(10)


class ReaperProcess(Process):
    """``python -m reaper`` with its port."""

    port: int

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return int(answer.status), str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    async def ready(self) -> None:
        async def is_ready() -> bool:
            status, _ = await asyncio.to_thread(self.get, "/health/ready")
            return status == 200

        _ = await eventually(is_ready, within=15)


class OwnerProcess(Process):
    """``owner.py`` with its claim."""

    async def claimed(self) -> tuple[str, str]:
        """(job id, client)."""
        found = await eventually(lambda: re.search(r"^claimed (\S+) (\S+)$", self.output, re.MULTILINE), within=15)
        assert found is not None
        return found[1], found[2]

    def registrations(self) -> list[str]:
        return re.findall(r"^registered (\S+)$", self.output, re.MULTILINE)


class Stack:
    """A server, what a client of it sees, and the processes on it; one model ``m``."""

    def __init__(self, valkey: ValkeyProcess, directory: Path, lease_seconds: int) -> None:
        self.valkey = valkey
        self.lease_seconds = lease_seconds
        self.queue = RedisQueue(CommonSettings(redis_url=Secret(valkey.url)), name="test")
        config = ModelConfig(service_type="test", operations={"run": "/run"}, lease_seconds=lease_seconds)
        self.broker = self.queue.broker(MODEL, config)
        self._directory = directory
        self._processes: list[Process] = []
        _ = (directory / "models.yaml").write_text(
            f"models: {{m: {{service_type: test, operations: {{run: /run}}, lease_seconds: {lease_seconds}}}}}\n",
            "utf-8",
        )

    def reaper(self, **environ: str) -> ReaperProcess:
        port = free_port()
        process = ReaperProcess(
            self._directory / f"reaper-{len(self._processes)}.log",
            ["-m", "reaper"],
            **{
                "REDIS_URL": self.valkey.url,
                "BLOBS_URL": (self._directory / "blobs").as_uri(),
                "MODELS_FILE": str(self._directory / "models.yaml"),
                "REAPER_METRICS_PORT": str(port),
                **environ,
            },
        )
        process.port = port
        self._processes.append(process)
        return process

    def owner(self, **environ: str) -> OwnerProcess:
        name = f"owner-{len(self._processes)}"
        process = OwnerProcess(
            self._directory / f"{name}.log",
            [str(Path(__file__).with_name("owner.py")), self.valkey.url, MODEL, name, str(self.lease_seconds)],
            **environ,
        )
        self._processes.append(process)
        return process

    async def submit(self, job_id: str) -> None:
        _ = await self.broker.submit(NewJob(id=job_id, fields={}))

    async def status(self, job_id: str) -> str:
        return (await self.broker.get(job_id)).status

    async def until(self, job_id: str, status: str, *, within: float = 10) -> None:
        async def reached() -> bool:
            return await self.status(job_id) == status

        _ = await eventually(reached, within=within)

    async def aclose(self) -> None:
        for process in self._processes:
            process.clean_up()
        await self.queue.aclose()


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyProcess]:
    directory = tmp_path / "valkey"
    directory.mkdir()
    with ValkeyProcess(directory=directory, appendonly="always") as server:
        yield server


@pytest.fixture
def stacks(valkey: ValkeyProcess, tmp_path: Path) -> Callable[[int], AbstractAsyncContextManager[Stack]]:
    """``async with stacks(lease_seconds) as stack``."""

    @asynccontextmanager
    async def make(lease_seconds: int) -> AsyncGenerator[Stack, None]:
        stack = Stack(valkey, tmp_path, lease_seconds)
        try:
            yield stack
        finally:
            await stack.aclose()

    return make
