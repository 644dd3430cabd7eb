"""The console as one ASGI application: routes, files, and how errors look."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.console.access import Access, Sessions
from gateway.console.actions import Actions
from gateway.console.pages import Pages
from gateway.console.redrive import Redrives
from gateway.console.rendering import ROOT, refusal_page
from gateway.console.webhooks import Webhooks
from gateway.edge import Edge
from gateway.problems import Refusal, log_refused, refusal_of, row_of
from queuecore.broker import Server
from queuecore.errors import QueueCoreError

_TYPES: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class AdminPort:
    """ASGI application of the admin port: the console where its paths are, the API everywhere else."""

    def __init__(self, console: ASGIApp, api: ASGIApp) -> None:
        self._console = console
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope.get("path", "")
        ours = scope["type"] == "http" and (path in {"/", ROOT} or path.startswith(f"{ROOT}/"))
        await (self._console if ours else self._api)(scope, receive, send)


def console(edge: Edge, server: Server, token: str, redrives: Redrives) -> ASGIApp:
    """The console; ``token`` "" lets everybody in who reaches it from this machine."""
    sessions = Sessions(token, server)
    pages, actions = Pages(edge, server, sessions, redrives), Actions(edge, sessions, redrives)
    webhooks = Webhooks(edge.notices, pages)
    app = Starlette(
        routes=[
            Route("/", _home, methods=["GET"]),
            Route(ROOT, pages.queues, methods=["GET"]),
            Route(f"{ROOT}/queue", pages.queue, methods=["GET"]),
            Route(f"{ROOT}/jobs", pages.jobs, methods=["GET"]),
            Route(f"{ROOT}/jobs/{{id}}", pages.job, methods=["GET"]),
            Route(f"{ROOT}/deadletters", pages.deadletters, methods=["GET"]),
            Route(f"{ROOT}/webhooks", webhooks.notices, methods=["GET"]),
            Route(f"{ROOT}/webhooks/{{id}}", webhooks.notice, methods=["GET"]),
            Route(f"{ROOT}/login", pages.sign_in, methods=["GET"]),
            Route(f"{ROOT}/assets/{{name}}", _asset, methods=["GET"]),
            Route(f"{ROOT}/login", actions.sign_in, methods=["POST"]),
            Route(f"{ROOT}/logout", actions.sign_out, methods=["POST"]),
            Route(f"{ROOT}/queue/pause", actions.pause, methods=["POST"]),
            Route(f"{ROOT}/queue/resume", actions.resume, methods=["POST"]),
            Route(f"{ROOT}/queue/purge", actions.purge, methods=["POST"]),
            Route(f"{ROOT}/deadletters/redrive", actions.redrive, methods=["POST"]),
            Route(f"{ROOT}/deadletters/stop", actions.stop_redrive, methods=["POST"]),
            Route(f"{ROOT}/deadletters/drop", actions.drop, methods=["POST"]),
            Route(f"{ROOT}/webhook/redeliver", webhooks.redeliver, methods=["POST"]),
            Route(f"{ROOT}/job/cancel", actions.cancel, methods=["POST"]),
            Route(f"{ROOT}/job/redrive", actions.redrive_job, methods=["POST"]),
        ],
        exception_handlers={
            Refusal: _on_refusal,
            QueueCoreError: _on_queue_error,
            HTTPException: _on_http_exception,
            Exception: _on_bug,
        },
    )
    app.router.redirect_slashes = False
    app.state.sessions = sessions
    return Access(app, sessions)


async def _home(_: Request) -> Response:
    return RedirectResponse(ROOT, 303)


async def _asset(request: Request) -> Response:
    """A file of the package; asked for again each time, so that a new gateway is never seen in an old one's style."""
    name = request.path_params["name"]
    if name not in _TYPES:
        raise HTTPException(404)
    content = (resources.files("gateway.console") / "assets" / name).read_bytes()
    headers = {"etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"', "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, _TYPES[name])


async def _on_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)  # noqa: S101  registered for this class only
    return refusal_page(request, error)


async def _on_queue_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, QueueCoreError)  # noqa: S101  registered for this class only
    refusal = refusal_of(error)
    log_refused(error, refusal.status)
    return refusal_page(request, refusal)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  registered for this class only
    code = {404: "route_not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    refusal = Refusal(error.status_code, code, f"There is no such page: {request.url.path}", headers=error.headers)
    return refusal_page(request, refusal)


async def _on_bug(request: Request, error: Exception) -> Response:
    row = row_of(error)
    return refusal_page(request, Refusal(row.status, QueueCoreError.code, row.detail))
