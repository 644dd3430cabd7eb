"""What the process does now, and what broke it: known to the loop, the liveness thread and the health endpoint."""

from __future__ import annotations

import asyncio


class Progress:
    """``phase`` is for people; ``serving`` while it waits for a job or runs one. Made in the main loop."""

    def __init__(self) -> None:
        self.phase = "starting"
        self.serving = False
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def enter(self, phase: str, *, serving: bool) -> None:
        """Something else is done from now on."""
        self.phase, self.serving = phase, serving

    def break_off(self, error: BaseException) -> None:
        """End the process because of ``error``: a running job is given back. Call it in the main loop."""
        if not self.broken.done():
            self.broken.set_exception(error)
            _ = self.broken.exception()  # retrieved here: the loop may be past the point where it looks
