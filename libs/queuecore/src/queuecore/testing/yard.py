"""A yard of real processes for tests: submit, start relays, kill them, reap, and look at what is left."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from queuecore.blobs import BlobStore
from queuecore.broker import Broker, NewJob
from queuecore.config import Transport, parse_config
from queuecore.job import JobRecord, Status, input_key
from queuecore.names import new_job_id
from queuecore.redis import RedisQueue
from queuecore.redis.client import Link
from queuecore.settings import CommonSettings, Secret
from queuecore.storage.directory import DirectoryStore
from queuecore.testing.clock import eventually
from queuecore.testing.operator import operator_of
from queuecore.testing.processes import Mock, Process, Served
from queuecore.testing.servers import ValkeyProcess

__all__ = ["Mock", "Process", "Served", "Yard"]

P = TypeVar("P", bound=Process)

MODEL_TEXT: Final = """
  {name}:
    service_type: echo
    operations: {{echo: {{url: /echo, request: raw}}}}
    lease_seconds: {lease}
"""


class Yard:
    """One queue, one store, and the processes around them. ``model`` keeps yards on one server apart."""

    def __init__(
        self,
        server: ValkeyProcess,
        mock: Mock,
        directory: Path,
        *,
        model: str = "m",
        lease_seconds: int = 60,
        transport: Transport = "list",
        limits: str = "",
        stages: Sequence[str] = (),
        store: tuple[BlobStore, Mapping[str, str]] | None = None,
    ) -> None:
        """``limits`` is YAML behind the model's keys; ``stages`` come after it in a pipeline. ``store`` is another one
        than a plain directory, and the environment that makes processes open it.
        """
        self.model, self.mock, self.directory, self.lease_seconds = model, mock, directory, lease_seconds
        self._server = server
        directory.mkdir(exist_ok=True, parents=True)
        self.models_file = directory / "models.yaml"
        text = "models:" + "".join(MODEL_TEXT.format(name=name, lease=lease_seconds) for name in (*stages, model))
        text += limits if transport == "stage" else f"    transport: {transport}\n{limits}"
        if transport == "stage":
            text += f"pipelines: {{line: {{stages: [{', '.join([model, *stages])}]}}}}\n"
        _ = self.models_file.write_text(text, "utf-8")
        (directory / "blobs").mkdir(exist_ok=True)
        self.common = CommonSettings(redis_url=Secret(server.url), models_file=str(self.models_file))
        plain = DirectoryStore(directory / "blobs"), {"BLOBS_URL": (directory / "blobs").as_uri()}
        self.store, self.store_environ = store or plain
        self.link = Link(self.common, name="yard")
        self.queue = RedisQueue(self.common, name="yard")
        self.whole = parse_config(text)
        self.config = self.whole.models[model]
        self.broker: Broker = self.queue.broker(model, self.config)
        self.operator = operator_of(transport, self.link, model)
        self.processes: list[Process] = []
        self._numbers = itertools.count()

    @property
    def environ(self) -> dict[str, str]:
        """The environment of every service of the yard."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("RELAY_", "REAPER_", "GATEWAY_"))
        }
        return inherited | {
            "REDIS_URL": self._server.url,
            "MODELS_FILE": str(self.models_file),
            "PYTHONUNBUFFERED": "1",
            **self.store_environ,
        }

    async def flush(self) -> None:
        """An empty server."""
        _ = await self.link.call("FLUSHALL")

    async def submit(self, content: bytes = b"hello", **params: object) -> str:
        """A job of the echo model with this input; params are the mock's instructions."""
        job = await self.prepare(content, **params)
        _ = await self.broker.submit(job)
        return job.id

    async def prepare(self, content: bytes = b"hello", **params: object) -> NewJob:
        """The same, its input stored and not submitted yet."""
        job_id = new_job_id()
        _ = await self.store.put(input_key(job_id), _once(content))
        fields = {
            "service_type": "echo",
            "operation": "echo",
            "request": "raw",
            "inference_url": "/echo",
            "input_key": input_key(job_id),
            "input_size": str(len(content)),
            "input_sha256": hashlib.sha256(content).hexdigest(),
            "input_content_type": "application/octet-stream",
            "params": msgspec.json.encode(params).decode(),
        }
        return NewJob(id=job_id, fields=fields)

    async def start(
        self,
        module: str,
        environ: Mapping[str, str] | None = None,
        *,
        faultpoint: bool = False,
        kind: type[P] = Process,
    ) -> P:
        """``python -m module`` with the yard's environment."""
        log = self.directory / f"{module}-{next(self._numbers)}.log"
        arguments = ["-m", "queuecore.testing.faultpoint", module] if faultpoint else ["-m", module]
        with log.open("ab") as output:
            inner = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, env=self.environ | dict(environ or {}), stdin=asyncio.subprocess.PIPE,
                stdout=output, stderr=output,
            )  # fmt: skip
        process = kind(inner, log)
        self.processes.append(process)
        return process

    async def relay(self, *, faultpoint: bool = False, **environ: str) -> Process:
        """A relay that works on one job, or ends within a second of an empty queue."""
        settings = {
            "RELAY_MODEL": self.model,
            "RELAY_INFERENCE_URL": self.mock.url,
            "RELAY_QUEUE_POP_TIMEOUT_SECONDS": "1",
            "RELAY_METRICS_PORT": "0",
        }
        return await self.start("relay", settings | environ, faultpoint=faultpoint)

    async def reaper(self, *, faultpoint: bool = False, **environ: str) -> Process:
        """A reaper process."""
        return await self.start("reaper", {"REAPER_METRICS_PORT": "0"} | environ, faultpoint=faultpoint)

    async def ready_reaper(self, **environ: str) -> Served:
        """A reaper that has looked at everything once."""
        reaper = await self.start("reaper", {"REAPER_METRICS_PORT": "0"} | environ, kind=Served)
        reaper.url = f"http://127.0.0.1:{(await reaper.said('service.started'))['metrics_port']}"
        return await reaper.ready()

    async def gateway(self, *, faultpoint: bool = False, **environ: str) -> Served:
        """A gateway that is ready; one environment variable more is ``GATEWAY_PORT``, to come back to the same."""
        settings = {
            "GATEWAY_AUTH": "none",
            "GATEWAY_PORT": "0",
            "GATEWAY_ADMIN_PORT": "0",
            "GATEWAY_METRICS_PORT": "0",
        }
        gateway = await self.start("gateway", settings | environ, faultpoint=faultpoint, kind=Served)
        gateway.url = f"http://127.0.0.1:{(await gateway.said('service.started'))['port']}"
        return await gateway.ready()

    async def idle(self, relay: Process, within: float = 60) -> None:
        """The relay's pop waits on the server; it has nothing in hand."""
        mine = f"name=relayq-relay:{relay.pid} "

        async def popping() -> bool:
            assert relay.running, relay.log.read_text("utf-8")
            clients: str = await self.link.call("CLIENT", "LIST", "TYPE", "normal")
            return any(mine in line and " cmd=blmove " in line and " flags=b " in line for line in clients.splitlines())

        _ = await eventually(popping, within=within)

    async def reap_the_dead(self) -> None:
        """What a reaper does, at once: death notices by connection, then stranded pops without their grace."""
        owners = await self.broker.owners()
        living = await self.queue.server.living_clients([one.client for one in owners])
        assert living is not None
        for owned in owners:
            if owned.client not in living:
                _ = await self.broker.reap_dead(owned, "its connection closed")
        _ = await self.broker.reap(first_seen_grace_ms=0)

    async def status(self, job_id: str) -> JobRecord:
        """Its record."""
        return await self.broker.get(job_id)

    async def finished(self, job_id: str, within: float = 20) -> JobRecord:
        """Its record, once a verdict is reached."""

        async def look() -> JobRecord | None:
            record = await self.broker.get(job_id)
            return record if record.terminal else None

        found = await eventually(look, within=within)
        assert found is not None
        return found

    async def finished_by_a_relay(self, content: bytes) -> str:
        """One undisturbed job."""
        job_id = await self.submit(content)
        relay = await self.relay()
        assert await relay.ended() == 0, relay.log.read_text("utf-8")
        _ = await self.check_one_good_end(job_id, content)
        return job_id

    async def events(self) -> list[str]:
        """Ids of every outbox event there is."""
        entries = await self.link.call("XRANGE", f"relay:{self.model}:outbox", "-", "+")
        return [flat[flat.index("event") + 1] for _, flat in entries]

    async def check_one_good_end(self, job_id: str, content: bytes) -> JobRecord:
        """One verdict, one event, the right bytes, nothing left over."""
        record = await self.finished(job_id)
        assert record.status == Status.COMPLETED, record
        assert (await self.events()).count(record.event_id) == 1
        await self.check_result(record, content)
        assert await self.operator.residue() == []
        return record

    async def check_result(self, record: JobRecord, content: bytes) -> None:
        """The record's result is whole, and what the echo says of this input."""
        async with self.store.get(record.result_key) as chunks:
            stored = b"".join([chunk async for chunk in chunks])
        assert hashlib.sha256(stored).hexdigest() == record.result_sha256
        assert msgspec.json.decode(stored)["sha256"] == hashlib.sha256(content).hexdigest()

    async def aclose(self) -> None:
        """Kill what still runs and close connections."""
        for process in self.processes:
            if process.running:
                process.signal(signal.SIGCONT)
                process.signal(signal.SIGKILL)
                _ = await process.ended()
        await self.queue.aclose()
        await self.link.aclose()


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
