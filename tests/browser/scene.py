"""Queues in every state behind a real gateway, made to order."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from queuecore.broker import Broker, NewJob, OwnedClaim, Result, Worker
from queuecore.config import parse_config
from queuecore.job import result_key
from queuecore.names import new_claim_id
from queuecore.testing.raw_http import HeldModel
from queuecore.testing.yard import Yard

MODELS: Final = """
models:
  whisper-large-v3:
    service_type: transcription
    operations: {transcribe: {url: /v1/audio/transcriptions, request: raw}}
  meta-llama/Llama-3.1-8B:
    service_type: chat
    operations: {complete: {url: /v1/chat/completions, request: json}}
    max_pending: 200
  bge-m3:
    service_type: embedding
    operations: {embed: {url: /v1/embeddings, request: json}}
  sdxl-turbo:
    service_type: image
    operations: {generate: {url: /v1/images, request: json}}
"""
WHISPER, LLAMA, BGE, SDXL = "whisper-large-v3", "meta-llama/Llama-3.1-8B", "bge-m3", "sdxl-turbo"


class Scene:
    """The gateway's console, and the queues behind it."""

    def __init__(self, yard: Yard, models_file: Path) -> None:
        self.yard, self.models_file = yard, models_file
        self.console = ""
        self._config = parse_config(MODELS)

    async def start(self, token_file: str = "") -> str:
        """A gateway; where its console is."""
        gateway = await self.yard.gateway(MODELS_FILE=str(self.models_file), GATEWAY_ADMIN_TOKEN_FILE=token_file)
        port = (await gateway.said("service.started"))["admin_port"]
        return f"http://127.0.0.1:{port}/console"

    def broker(self, model: str) -> Broker:
        """The queue from outside, as a relay has it."""
        return self.yard.queue.broker(model, self._config.models[model])

    async def submit(self, model: str, count: int = 1, **fields: str) -> list[str]:
        config = self._config.models[model]
        [operation] = config.operations
        ids: list[str] = []
        for _ in range(count):
            job = await self.yard.prepare(b"x" * 48_213)
            given = {
                **job.fields, "service_type": config.service_type, "operation": operation, "tenant": "acme",
                "inference_url": config.operation(operation).url, "params": '{"language": "en", "temperature": 0.2}',
                "input_filename": "interview.flac", "input_content_type": "audio/flac", **fields,
            }  # fmt: skip
            _ = await self.broker(model).submit(NewJob(id=job.id, fields=given))
            ids.append(job.id)
        return ids

    async def bury(self, model: str, count: int) -> list[str]:
        """Dead letters: their workers died once too often."""
        ids = await self.submit(model, count)
        broker = self.broker(model)
        for _ in range(count * (broker.limits.max_reap_attempts + 1)):
            claim = await broker.claim(Worker("relay-6f7c-x2lqp"), new_claim_id())
            assert claim is not None
            _ = await broker.renew(claim, "gone:9")
            owned = OwnedClaim(claim.job_id, claim.fence, claim.claim_id, "gone:9")
            _ = await broker.reap_dead(owned, "its connection closed (exit 137)")
        return ids

    async def run(self, model: str, count: int, worker: str) -> None:
        """Claims that go on."""
        for number in range(count):
            assert await self.broker(model).claim(Worker(f"{worker}-{number}"), new_claim_id()) is not None

    async def finish(self, model: str) -> str:
        """Run the next job to its end."""
        broker = self.broker(model)
        claim = await broker.claim(Worker("relay-whisper-large-v3-7d9f-0"), new_claim_id())
        assert claim is not None
        content = b'{"text": "so it goes"}'

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        key = result_key(claim.job_id, claim.fence, claim.claim_id)
        _ = await self.yard.store.put(key, chunks())
        digest = hashlib.sha256(content).hexdigest()
        _ = await broker.complete(claim, Result(key, len(content), "application/json", digest))
        return claim.job_id

    async def relay(self, model: str, upstream: HeldModel) -> None:
        """A real relay for one job."""
        _ = await self.yard.relay(
            RELAY_MODEL=model, RELAY_INFERENCE_URL=upstream.url, MODELS_FILE=str(self.models_file)
        )  # fmt: skip
