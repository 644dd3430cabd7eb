"""/metrics, /health/live and /health/ready on a port of their own, from a daemon thread.

A thread, so that a blocked event loop can be seen from outside: ``health`` is asked in it and must be quick and safe
to call from any thread. Bounded: ``_MOST_REQUESTS`` at once, each read within ``_READ_SECONDS``; more are
closed unread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from queuecore.errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_MOST_REQUESTS: Final = 32
_READ_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


class Health(NamedTuple):
    """``live``: do not restart this process. ``ready``: it does its work now. ``detail`` says what is wrong."""

    live: bool
    ready: bool
    detail: Mapping[str, str] = {}


class Endpoint:
    """A listening endpoint. ``port`` is the real one when 0 was asked for."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self.port = int(server.server_address[1])
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="endpoint", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; requests being answered are not waited for."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1)


def serve(host: str, port: int, health: Callable[[], Health]) -> Endpoint:
    """Listen on ``host``:``port`` (0: a free one) until ``close``.

    Raises:
        ConfigurationError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kind = type("_FamilyServer", (_Server,), {"address_family": family})
    try:
        server: _Server = kind((host, port), _Handler)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"cannot listen on {host}:{port} for metrics and health: {error}") from error
    server.set_app(_application(health))
    return Endpoint(server)


def _application(health: Callable[[], Health]) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return _text(start_response, "405 Method Not Allowed", "only GET\n")
        if path == "/metrics":
            # Here and not above: a relay that is never scraped does not pay for the import before its claim.
            from prometheus_client import make_wsgi_app  # noqa: PLC0415

            return make_wsgi_app()(environ, start_response)
        if path in {"/health/live", "/health/ready"}:
            return _health(start_response, health, path)
        return _text(start_response, "404 Not Found", "/metrics, /health/live or /health/ready\n")

    return answer


def _health(start_response: StartResponse, health: Callable[[], Health], path: str) -> Iterable[bytes]:
    try:
        now = health()
    except Exception as error:  # noqa: BLE001  the outermost frame of this thread; a probe needs an answer
        _log.exception("the health check itself failed", extra={"event": "service.failed"})
        now = Health(live=False, ready=False, detail={"health": type(error).__name__})
    good = now.live if path == "/health/live" else now.ready
    body = {"status": "ok" if good else "failing", "live": now.live, "ready": now.ready, "detail": dict(now.detail)}
    status = "200 OK" if good else "503 Service Unavailable"
    return _text(start_response, status, json.dumps(body) + "\n", "application/json")


def _text(start_response: StartResponse, status: str, body: str, content_type: str = "text/plain") -> Iterable[bytes]:
    content = body.encode()
    headers = [("Content-Type", f"{content_type}; charset=utf-8"), ("Content-Length", str(len(content)))]
    _ = start_response(status, [*headers, ("Cache-Control", "no-store")])
    return [content]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """WSGI with a thread a request, bounded, and without the name look-up that http.server makes when it binds."""

    daemon_threads: bool = True
    block_on_close: bool = False
    request_queue_size: int = 64

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self._slots = threading.BoundedSemaphore(_MOST_REQUESTS)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        _log.debug("a client of the endpoint went away", exc_info=True, extra={"event": "request.refused"})


class _Handler(WSGIRequestHandler):
    timeout: ClassVar[float | None] = _READ_SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's signature
        """Nothing: probes come every few seconds."""

    def get_stderr(self) -> Any:
        # wsgiref writes the tracebacks of broken pipes there.
        return _Nowhere()

    def handle(self) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError):
            super().handle()


class _Nowhere:
    def write(self, _: str) -> int:
        return 0

    def flush(self) -> None:
        return
