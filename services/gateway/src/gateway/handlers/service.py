"""What the gateway offers and how it is: models, liveness, readiness."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.edge import Edge, edge_of
from gateway.handlers.answers import json_answer
from gateway.problems import RETRY_SECONDS, Refusal
from queuecore.broker import QueueCounts
from queuecore.config import Config

MODELS: Final = "/models"


async def models(request: Request) -> Response:
    """``GET /models``: each with its limits and the state of its queue."""
    edge = edge_of(request)
    _ = await edge.caller(request, "read")
    return await edge.reads.answer(request, MODELS, lambda: _models(edge))


async def _models(edge: Edge) -> dict[str, Any]:
    names = list(edge.config.models)
    counts = await asyncio.gather(*(edge.brokers[name].counts() for name in names))
    most = edge.settings.max_upload_bytes
    return {
        "models": [_model(name, edge.config, queue, most) for name, queue in zip(names, counts, strict=True)],
        "pipelines": [{"name": name, "stages": one.stages} for name, one in edge.config.pipelines.items()],
    }


def _model(name: str, config: Config, queue: QueueCounts, max_upload_bytes: int) -> dict[str, Any]:
    model = config.models[name]
    provider = config.providers.get(model.provider or "")
    return {
        "name": name,
        "service_type": model.service_type,
        "default": model.default,
        "operations": list(model.operations),
        "accepted_types": model.accepted_types,
        "max_upload_bytes": min(model.max_upload_bytes or max_upload_bytes, max_upload_bytes),
        "max_pending": model.max_pending,
        "execution_timeout_seconds": model.execution_timeout_seconds,
        "provider": {"name": model.provider, **msgspec.to_builtins(provider)} if provider else None,
        "gates": msgspec.to_builtins(model.gates),
        "queue": {
            "pending": queue.pending,
            "processing": queue.processing,
            "delayed": queue.delayed,
            "held": queue.paused + queue.ordered,
            "paused": bool(queue.paused_reason),
        },
    }


async def live(request: Request) -> Response:
    """``GET /health/live``: 503 when a background task hangs, so that the process is restarted."""
    dead = edge_of(request).health.dead_tasks()
    if dead:
        raise Refusal(503, "not_live", "; ".join(f"{name} {text}" for name, text in dead.items()))
    return json_answer(200, {"status": "live"})


async def ready(request: Request) -> Response:
    """``GET /health/ready``: Redis and the store answer, and Redis keeps what it is given."""
    readiness = await edge_of(request).health.ready()
    if readiness.problems:
        raise Refusal(
            503,
            "not_ready",
            "; ".join(f"{part}: {text}" for part, text in readiness.problems.items()),
            headers={"retry-after": str(RETRY_SECONDS)},
            members={"problems": dict(readiness.problems), "durability": readiness.durability},
        )
    return json_answer(200, {"status": "ready", "durability": readiness.durability})
