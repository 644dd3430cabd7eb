"""One listening port of ours: uvicorn inside a process that has other ports and its own signal handling."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from gateway.protocol import options
from queuecore.errors import ConfigurationError

LEAVE_SECONDS: Final = 2.0


class Listener(uvicorn.Server):
    """Serves ``app`` on a socket that is bound at once, so that a port in use is said in words."""

    def __init__(self, app: ASGIApp, host: str, port: int, *, what: str, drain_seconds: float) -> None:
        """Bind.

        Raises:
            ConfigurationError: the address cannot be used.
        """
        super().__init__(uvicorn.Config(app, timeout_graceful_shutdown=max(1, round(drain_seconds)), **options()))
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=2048)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"cannot listen on {host}:{port} for {what}: {error}") from error
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the process's business."""
        yield

    async def listen(self) -> None:
        """Serve until ``stop``, then drain."""
        await self.serve(sockets=[self._socket])
        # Requests whose time was over were cancelled; they give back what they hold before connections close.
        if self.server_state.tasks:
            _ = await asyncio.wait(self.server_state.tasks, timeout=LEAVE_SECONDS)

    def stop(self) -> None:
        """Take no more connections; ``listen`` returns when the requests have ended or their time is over."""
        self.should_exit = True
