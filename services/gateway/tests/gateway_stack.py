"""One gateway in process: the in-memory queue, a store in a dictionary, and an HTTP client on the ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gateway.app import Gateway, build
from gateway.listener import Listener
from gateway.settings import GatewaySettings
from queuecore.blobs import BlobStore
from queuecore.broker import Broker, Claim, Result, Worker
from queuecore.config import Config, parse_config, queue_limits
from queuecore.job import result_key
from queuecore.names import new_claim_id
from queuecore.settings import CommonSettings
from queuecore.telemetry.tracing import Tracer
from queuecore.testing.blobs import MemoryStore
from queuecore.testing.clock import ManualClock
from queuecore.testing.memory import MemoryQueue

DATA = Path(__file__).parent / "data"

MODELS = """
models:
  whisper-large-v3:
    service_type: transcription
    operations: {transcribe: /v1/audio/transcriptions}
    accepted_types: ["audio/*"]
  meta-llama/Llama-3.1-8B:
    service_type: chat
    operations: {complete: {url: /v1/chat/completions, request: json}}
    provider: acme
    gates: [{type: rate, limit: 7, unit: tokens}]
  small:
    service_type: echo
    operations: {echo: /echo, other: /other}
    max_upload_bytes: 1000
    max_pending: 3
  large:
    service_type: echo
    operations: {echo: /echo}
    default: true
providers:
  acme: {requests_per_minute: 60, concurrent: 5}
"""


@dataclass
class Stack:
    """A gateway and what it stands on."""

    gateway: Gateway
    queue: MemoryQueue
    store: BlobStore
    config: Config
    brokers: dict[str, Broker]
    client: httpx.AsyncClient
    admin: httpx.AsyncClient
    settings: GatewaySettings
    stack: AsyncExitStack = field(repr=False)

    @property
    def objects(self) -> dict[str, bytes]:
        """What the store holds."""
        assert isinstance(self.store, MemoryStore)
        return self.store.objects

    @property
    def job_ids(self) -> list[str]:
        """Every job there is."""
        return [one for specification in self.queue.specifications.values() for one in specification.state.jobs]

    async def claim(self, model: str = "whisper-large-v3") -> Claim:
        """Run the next job of the model."""
        claim = await self.brokers[model].claim(Worker("relay"), new_claim_id())
        assert claim is not None
        return claim

    async def complete(self, claim: Claim, content: bytes, content_type: str = "application/json") -> None:
        """Store a result and give the verdict."""
        import hashlib

        key = result_key(claim.job_id, claim.fence, claim.claim_id)

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        _ = await self.store.put(key, chunks())
        digest = hashlib.sha256(content).hexdigest()
        _ = await self.brokers[claim.record.model].complete(claim, Result(key, len(content), content_type, digest))

    async def listen(self) -> int:
        """Serve the public application on a real socket; its port."""
        listener = Listener(self.gateway.public, "127.0.0.1", 0, what="a test", drain_seconds=1)
        serving = asyncio.create_task(listener.listen())

        async def stop() -> None:
            listener.stop()
            await serving

        _ = self.stack.push_async_callback(stop)
        return listener.port


MakeStack = Callable[..., Awaitable[Stack]]


@asynccontextmanager
async def open_stack(
    store: BlobStore | None = None,
    models: str = MODELS,
    queue: MemoryQueue | None = None,
    tracer: Tracer | None = None,
    **settings: Any,
) -> AsyncGenerator[Stack, None]:
    """A stack of its own; ``settings`` are those of the gateway."""
    given: dict[str, Any] = {"auth": "none", "port": 0, **settings}
    chosen = GatewaySettings(**given)
    config = parse_config(models)
    queue = queue or MemoryQueue(ManualClock())
    store = store or MemoryStore()
    brokers: dict[str, Broker] = {
        name: queue.broker(name, queue_limits(model, CommonSettings())) for name, model in config.models.items()
    }
    async with AsyncExitStack() as stack:
        gateway = build(chosen, config, queue, brokers, store, outboxes=brokers, tracer=tracer or Tracer())
        _ = stack.push_async_callback(gateway.tasks.stop)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(gateway.public), base_url="http://gateway")
        admin = httpx.AsyncClient(transport=httpx.ASGITransport(gateway.admin), base_url="http://localhost")
        _ = await stack.enter_async_context(client)
        _ = await stack.enter_async_context(admin)
        yield Stack(gateway, queue, store, config, brokers, client, admin, chosen, stack)
