"""The process's HTTP server."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

import uvicorn

from mock_inference.app import create_app
from mock_inference.settings import Settings

_LEAVE_SECONDS: Final = 1.0


class Server(uvicorn.Server):
    """Leaves running requests a second, then breaks their connections."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; a request that hangs must not look answered, so there is no 500 for it, only a closed connection."""
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await super().shutdown(sockets)
        except TimeoutError:
            os._exit(0)


def serve(settings: Settings) -> None:
    """Serve until a signal."""
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        lifespan="off",
        access_log=False,
        timeout_keep_alive=settings.keep_alive_seconds,
    )
    Server(config).run()
