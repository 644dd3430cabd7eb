"""A relay in this process over an in-memory queue and store, beside a model that tests script byte for byte."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from queuecore.blobs import BlobStore
from queuecore.broker import Broker, Claim, NewJob, OutboxEvent, QueueLimits, Signals
from queuecore.clock import monotonic
from queuecore.config import ModelConfig
from queuecore.job import JobRecord, input_key
from queuecore.names import new_job_id
from queuecore.telemetry.tracing import Tracer
from queuecore.testing.blobs import MemoryStore
from queuecore.testing.clock import eventually
from queuecore.testing.memory import MemoryQueue
from queuecore.testing.raw_http import RawExchange, RawHttpServer
from relay.attempt import ExitCode
from relay.liveness import Keeper, Listener, Liveness
from relay.loop import Relay
from relay.progress import Progress
from relay.settings import RelaySettings
from relay.tally import Tally

MODEL = "m"


class TaskLiveness(Liveness):
    """A keeper in the test's own loop."""

    def __init__(self, broker: Broker, signals: Signals, broken: Callable[[BaseException], None]) -> None:
        self.keeper = Keeper(broker, signals, Tally(broker.model))
        self._ready = asyncio.Event()
        self.keeper.on_connected = self._ready.set
        self.task = asyncio.create_task(self.keeper.run())
        self.task.add_done_callback(lambda task: None if task.cancelled() else broken(task.exception() or SystemExit()))

    @property
    def client(self) -> str:
        return self.keeper.client

    @property
    def looked_at(self) -> float:
        return self.keeper.looked_at

    async def connected(self, within_seconds: float) -> bool:
        async with asyncio.timeout(within_seconds):
            return await self._ready.wait()

    def hold(self, claim: Claim, listener: Listener) -> None:
        self.keeper.hold(claim, listener)

    def let_go(self) -> None:
        self.keeper.let_go()


class Bench:
    """Everything that one relay touches."""

    def __init__(self, model: RawHttpServer, queue: Any, broker: Broker) -> None:
        self.model = model
        self.queue = queue
        self.broker = broker  # what tests look through
        self.relay_broker = broker  # what the relay uses: tests wrap it
        self.liveness_broker = broker
        self.signals: Signals = queue.signals
        self.store = MemoryStore()
        self.relay_store: BlobStore = self.store
        self.config: dict[str, Any] = {}
        self.stop = asyncio.Event()
        self.progress = Progress()
        self.tally = Tally(MODEL)
        self.tracer = Tracer()
        self._liveness: list[TaskLiveness] = []

    async def submit(self, content: bytes = b"input", **fields: str) -> str:
        job_id = new_job_id()

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        _ = await self.store.put(input_key(job_id), chunks())
        known = {
            "input_key": input_key(job_id),
            "input_size": str(len(content)),
            "input_sha256": hashlib.sha256(content).hexdigest(),
            "input_filename": "a.wav",
            "input_content_type": "audio/wav",
            "inference_url": "/v1/run",
            "request": "raw",
        }
        deadline = fields.pop("deadline", None)
        job = NewJob(id=job_id, fields=known | fields, deadline=int(deadline) if deadline else None)
        _ = await self.broker.submit(job)
        return job_id

    async def run(self, **settings: Any) -> ExitCode:
        """One relay, to its end."""
        liveness = TaskLiveness(self.liveness_broker, self.signals, self.progress.break_off)
        self._liveness.append(liveness)
        given: dict[str, Any] = {"queue_pop_timeout_seconds": 0.05, "inference_url": self.model.url, **settings}
        relay = Relay(
            RelaySettings(model=MODEL, **given),
            ModelConfig(service_type="test", operations={"run": "/v1/run"}, **self.config),
            self.relay_broker,
            liveness,
            self.open_store,
            progress=self.progress,
            stop=self.stop,
            worker_name="worker",
            tally=self.tally,
            tracer=self.tracer,
        )
        return await asyncio.wait_for(relay.run(), 30)

    def start(self, **settings: Any) -> asyncio.Task[ExitCode]:
        return asyncio.create_task(self.run(**settings))

    async def open_store(self) -> BlobStore:
        return self.relay_store

    async def record(self, job_id: str) -> JobRecord:
        return await self.broker.get(job_id)

    async def result(self, job_id: str) -> bytes:
        return self.store.objects[(await self.record(job_id)).result_key]

    def results(self) -> list[str]:
        """Keys of every result object, whoever's."""
        return [key for key in self.store.objects if key.endswith("/result")]

    async def events(self) -> list[OutboxEvent]:
        return list(await self.broker.events("test"))

    async def asked(self, number: int = 1) -> RawExchange:
        """The model's exchange of that number, once it has been asked."""
        _ = await eventually(lambda: len(self.model.exchanges) >= number, within=10)
        return self.model.exchanges[number - 1]

    async def aclose(self) -> None:
        for liveness in self._liveness:
            _ = liveness.task.cancel()
            _ = await asyncio.wait({liveness.task})


async def default_answer(exchange: RawExchange) -> None:
    _ = await exchange.read_body()
    await exchange.answer("200 OK", b"result", "Content-Type: text/plain")


@pytest.fixture
async def model() -> AsyncIterator[RawHttpServer]:
    async with RawHttpServer(default_answer) as server:
        yield server


@pytest.fixture
async def bench(model: RawHttpServer) -> AsyncIterator[Bench]:
    queue = MemoryQueue()
    made = Bench(model, queue, queue.broker(MODEL, QueueLimits(lease_ms=60_000)))
    yield made
    await made.aclose()


@pytest.fixture
def hang() -> Callable[[RawExchange], Awaitable[None]]:
    """A model that reads the request, never answers, and sees when the relay hangs up."""

    async def handler(exchange: RawExchange) -> None:
        _ = await exchange.read_body()
        await exchange.until_closed()

    return handler


@pytest.fixture
def seconds_of() -> Callable[[Awaitable[object]], Awaitable[float]]:
    async def measure(work: Awaitable[object]) -> float:
        began = monotonic()
        _ = await work
        return monotonic() - began

    return measure
