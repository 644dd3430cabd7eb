"""The operator's API on its own port: queues, claims, pause, dead letters.

It listens on loopback unless a token is set. Without a token, a browser on the same machine is the danger: pages of
other sites may send it requests (CSRF), or reach it under their own name (DNS rebinding). So the Host must be a name of
loopback, an Origin must be our own, and bodies must be JSON, which no page can send across sites unasked.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.documents import status_document
from gateway.edge import Edge
from gateway.handlers.answers import integer, json_answer, query_of
from gateway.handlers.service import MODELS
from gateway.operator import REDRIVE_MOST, deadletter_ids, purge_all, redrive
from gateway.problems import HANDLERS, Refusal, problem
from gateway.rates import Rates
from gateway.reuse import prefixes_of
from gateway.settings import is_loopback
from gateway.webhooks.admin import WebhookAdmin
from queuecore import clock
from queuecore.broker import Broker, QueueCounts, Server
from queuecore.clock import rfc3339
from queuecore.errors import BrokerError, ConfigurationError, JobError
from queuecore.job import JobRecord, Status
from queuecore.names import is_job_id
from queuecore.response_cache import ResponseCache
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

BODY_BYTES: Final = 1_048_576
CLAIMS_SHOWN: Final = 200
REDRIVE_SECONDS: Final = 50.0
SHORTEST_TOKEN: Final = 16
QUEUES: Final = "/queues"


class RedriveOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a redrive: either ``ids`` or ``all``."""

    ids: list[str] | None = None
    all: bool = False
    per_second: float | None = None


def read_token(path: str) -> str:
    """The admin token; "" when none is configured.

    Raises:
        ConfigurationError: the file cannot be read or holds no usable token.
    """
    if not path:
        return ""
    try:
        token = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"GATEWAY_ADMIN_TOKEN_FILE {path}: {error}") from error
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"GATEWAY_ADMIN_TOKEN_FILE {path}: at least {SHORTEST_TOKEN} printable ASCII characters without spaces"
        )
    return token


class Guard:
    """ASGI middleware: lets the operator in and nobody else."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] == "http":
            try:
                self._check(Headers(scope=scope), scope["method"])
            except Refusal as refusal:
                answer = problem(refusal.status, refusal.code, refusal.detail, headers=refusal.headers)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers, method: str) -> None:
        check_addressee(headers, any_host=bool(self._token))
        if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
            raise Refusal(403, "forbidden_origin", "requests from other sites are refused")
        if self._token:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            known = hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._token)
            if scheme.lower() != "bearer" or not known:
                raise Refusal(
                    401, "unauthorized", "Authorization: Bearer <token> is needed",
                    headers={"www-authenticate": 'Bearer realm="relayq admin"'},
                )  # fmt: skip
        if method in {"POST", "PUT", "PATCH"}:
            media_type = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
            if media_type != "application/json":
                raise Refusal(415, "unsupported_media_type", "the body must be application/json")


def check_addressee(headers: Headers, *, any_host: bool) -> None:
    """Let only requests in that were meant for this port.

    Raises:
        Refusal: 403; the Host is not a name of loopback (unless ``any_host``), or the Origin is another one.
    """
    host = headers.get("host", "")
    if not any_host and not is_loopback(_hostname(host)):
        raise Refusal(403, "forbidden_host", "without a token this port answers only to localhost and 127.0.0.1")
    origin = headers.get("origin")
    if origin is not None and netloc_of(origin) != host:
        raise Refusal(403, "forbidden_origin", "requests from other origins are refused")


def netloc_of(origin: str) -> str:
    """The host and port of an Origin; "" when it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class Admin:
    """The handlers."""

    def __init__(self, edge: Edge, server: Server, cache: ResponseCache, rates: Mapping[str, Rates]) -> None:
        self._edge = edge
        self._server = server
        self._cache = cache
        self._rates = rates

    def application(self) -> Starlette:
        """The routes. A model's name may hold slashes, so the fixed suffixes come first."""
        model = "/queues/{model:path}"
        app = Starlette(
            routes=[
                Route("/queues", self.queues, methods=["GET"]),
                Route(f"{model}/pause", self.pause, methods=["POST"]),
                Route(f"{model}/resume", self.resume, methods=["POST"]),
                Route(f"{model}/purge", self.purge, methods=["POST"]),
                Route(f"{model}/deadletter/redrive", self.redrive, methods=["POST"]),
                Route(f"{model}/deadletter/{{id}}", self.drop, methods=["DELETE"]),
                Route(f"{model}/deadletter", self.deadletters, methods=["GET"]),
                Route(model, self.queue, methods=["GET"]),
                Route("/cache", self.clear, methods=["DELETE"]),
                Route("/cache/{model:path}", self.clear_model, methods=["DELETE"]),
                *WebhookAdmin(self._edge.notices).routes(),
            ],
            exception_handlers=dict(HANDLERS),
        )
        app.router.redirect_slashes = False
        return app

    async def queues(self, request: Request) -> Response:
        """Every queue with its depths."""
        return await self._edge.reads.answer(request, QUEUES, self._queues)

    async def _queues(self) -> dict[str, Any]:
        return {"queues": [self._summary(name, await self._edge.brokers[name].counts()) for name in self._names]}

    async def clear(self, _: Request) -> Response:
        """Forget every kept answer: results of jobs and bodies of reads. The jobs stay."""
        return json_answer(200, {"removed": await self._cache.clear()})

    async def clear_model(self, request: Request) -> Response:
        """Forget which jobs answer requests to one model."""
        name, _ = self._broker(request)
        prefixes = prefixes_of(name, self._edge.config.models[name])
        return json_answer(200, {"model": name, "removed": sum([await self._cache.clear(one) for one in prefixes])})

    async def queue(self, request: Request) -> Response:
        """One queue, and who runs what."""
        name, broker = self._broker(request)
        now = await self._server.now_ms()
        claims = await broker.jobs(status=Status.PROCESSING, limit=CLAIMS_SHOWN)
        summary = self._summary(name, await broker.counts())
        return json_answer(
            200,
            summary | {"claims": [_claim(record, now) for record in claims.jobs], "more_claims": bool(claims.cursor)},
        )

    async def pause(self, request: Request) -> Response:
        """Hide waiting jobs from relays and from KEDA."""
        name, broker = self._broker(request)
        await broker.pause()
        await self._edge.reads.forget(QUEUES, MODELS)
        _log.warning("queue paused", extra={"event": Event.QUEUE_PAUSED, "model": name})
        return json_answer(200, self._summary(name, await broker.counts()))

    async def resume(self, request: Request) -> Response:
        """End a pause, an operator's or the breaker's."""
        name, broker = self._broker(request)
        await broker.resume()
        await self._edge.reads.forget(QUEUES, MODELS)
        _log.warning("queue resumed", extra={"event": Event.QUEUE_RESUMED, "model": name})
        return json_answer(200, self._summary(name, await broker.counts()))

    async def purge(self, request: Request) -> Response:
        """Cancel every waiting job."""
        name, broker = self._broker(request)
        purged = await purge_all(broker)
        await self._edge.reads.forget(QUEUES, MODELS)
        _log.warning("queue purged of %d jobs", purged, extra={"event": Event.QUEUE_PURGED, "model": name})
        return json_answer(200, self._summary(name, await broker.counts()) | {"purged": purged})

    async def deadletters(self, request: Request) -> Response:
        """Dead letters, oldest first."""
        name, broker = self._broker(request)
        query = query_of(request, {"offset", "limit"})
        offset = integer("offset", query.get("offset", "0"), 0, 10_000_000)
        limit = integer("limit", query.get("limit", "50"), 1, 500)
        found = await broker.deadletters(offset=offset, limit=limit)
        total = (await broker.counts()).deadletter
        return json_answer(
            200, {"model": name, "total": total, "offset": offset, "jobs": [_detail(record) for record in found]}
        )

    async def drop(self, request: Request) -> Response:
        """Take one dead letter off the list; its record stays until its retention ends."""
        name, broker = self._broker(request)
        job_id = request.path_params["id"]
        if not is_job_id(job_id) or not await broker.drop(job_id):
            raise Refusal(404, "deadletter_not_found", f"{job_id} is not a dead letter of {name}")
        await self._edge.reads.forget(QUEUES, MODELS)
        _log.warning("dead letter dropped", extra={"event": Event.JOB_DROPPED, "model": name, "job_id": job_id})
        return json_answer(200, {"job_id": job_id, "dropped": True})

    async def redrive(self, request: Request) -> Response:
        """Queue dead letters again, ``per_second`` of them; what does not fit into one request is said to remain."""
        name, broker = self._broker(request)
        order = await _order(request)
        ids = await deadletter_ids(broker) if order.all else list(dict.fromkeys(order.ids or ()))
        pause_seconds = 1 / order.per_second if order.per_second else 0.0
        end = clock.monotonic() + REDRIVE_SECONDS
        redriven: list[str] = []
        refused: list[dict[str, str]] = []
        stopped = ""
        for job_id in ids:
            if clock.monotonic() > end:
                stopped = f"{REDRIVE_SECONDS:g} s are over; send the request again"
                break
            try:
                await redrive(broker, job_id)
                redriven.append(job_id)
            except BrokerError as error:
                stopped = str(error)
                break
            except JobError as error:
                refused.append({"job_id": job_id, "code": error.code, "detail": str(error)})
            if pause_seconds and job_id != ids[-1]:
                await clock.sleep(pause_seconds)
        _log.warning(
            "%d dead letters redriven", len(redriven), extra={"event": Event.JOB_REDRIVEN, "model": name}
        )  # fmt: skip
        await self._edge.reads.forget(QUEUES, MODELS)
        remaining = len(ids) - len(redriven) - len(refused)
        return json_answer(
            200, {"redriven": redriven, "refused": refused, "remaining": remaining, "stopped": stopped or None}
        )

    @property
    def _names(self) -> list[str]:
        return list(self._edge.config.models)

    def _broker(self, request: Request) -> tuple[str, Broker]:
        name = request.path_params["model"]
        broker = self._edge.brokers.get(name)
        if broker is None:
            raise Refusal(404, "model_not_found", f"no model {name!r}; there are: {', '.join(self._names)}")
        return name, broker

    def _summary(self, name: str, counts: QueueCounts) -> dict[str, Any]:
        model, rates = self._edge.config.models[name], self._rates[name]
        return {
            "model": name,
            "service_type": model.service_type,
            "transport": model.transport,
            "depths": {
                "pending": counts.pending,
                "processing": counts.processing,
                "delayed": counts.delayed,
                "paused": counts.paused,
                "ordered": counts.ordered,
                "deadletter": counts.deadletter,
                "outbox": counts.outbox,
            },
            "oldest_pending_seconds": None if counts.oldest_pending_ms is None else counts.oldest_pending_ms / 1000,
            "paused": counts.paused_reason or None,
            "paused_until": None if counts.paused_until is None else rfc3339(counts.paused_until),
            "rates": {
                "submitted_per_second": rates.submitted.per_second(),
                "finished_per_second": rates.finished.per_second(),
            },
            "max_pending": model.max_pending,
        }


def _claim(record: JobRecord, now_ms: int) -> dict[str, Any]:
    left = None if record.lease_until is None else max(0, record.lease_until - now_ms) / 1000
    return {
        "job_id": record.id,
        "owner": record.owner,
        "fence": record.fence,
        "attempts": record.claims,
        "reaps": record.reaps,
        "started_at": None if record.started_at is None else rfc3339(record.started_at),
        "lease_left_seconds": left,
        "execute_until": None if record.execute_until is None else rfc3339(record.execute_until),
        "cancel_requested": bool(record.cancel_requested),
    }


def _detail(record: JobRecord) -> dict[str, Any]:
    return status_document(record) | {
        "tenant": record.tenant,
        "generation": record.generation,
        "last_exit": record.last_exit or None,
        "input": {
            "filename": record.input_filename,
            "size": record.input_size,
            "content_type": record.input_content_type,
            "sha256": record.input_sha256,
        },
    }


async def _order(request: Request) -> RedriveOrder:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES:
            raise Refusal(413, "body_too_large", f"the body may have {BODY_BYTES} bytes")
    try:
        order = msgspec.json.decode(bytes(body), type=RedriveOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, "invalid_json", str(error)) from error
    if order.all == (order.ids is not None):
        raise Refusal(400, "invalid_request", "give either ids (a list) or all (true)")
    if order.ids is not None and len(order.ids) > REDRIVE_MOST:
        raise Refusal(400, "invalid_request", f"ids: at most {REDRIVE_MOST}")
    if order.per_second is not None and not 0.1 <= order.per_second <= 1000:  # noqa: PLR2004  said in the text
        raise Refusal(400, "invalid_request", "per_second: from 0.1 to 1000")
    return order
