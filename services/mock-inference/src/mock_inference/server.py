"""The process's HTTP server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from typing import Final

import uvicorn

from mock_inference.app import create_app
from mock_inference.settings import Settings

_LEAVE_SECONDS: Final = 1.0
_BACKLOG: Final = 1_024
_log = logging.getLogger("uvicorn.error")


class Server(uvicorn.Server):
    """Leaves running requests a second, then breaks their connections."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept, and say so: uvicorn does it only for sockets that it made."""
        await super().startup(sockets)
        _log.info("running on %s port %d", self.config.host, self.config.port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; a request that hangs must not look answered, so there is no 500 for it, only a closed connection."""
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await super().shutdown(sockets)
        except TimeoutError:
            os._exit(0)


def serve(settings: Settings) -> None:
    """Serve until a signal.

    Raises:
        SystemExit: it cannot listen; the text says where and why.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        sys.exit(f"mock-inference: cannot listen on {settings.host}:{settings.port}: {error.strerror}")
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        lifespan="off",
        access_log=False,
        timeout_keep_alive=settings.keep_alive_seconds,
    )
    Server(config).run(sockets=[listener])
