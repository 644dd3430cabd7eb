"""Health of the process, as the endpoint's thread sees it: the loops' last rounds, not the process's existence."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from queuecore.clock import monotonic, sleep
from relay.liveness import Liveness
from relay.progress import Progress

if TYPE_CHECKING:
    from queuecore.telemetry.endpoint import Health

_BEAT_SECONDS: Final = 1.0
_STALE_SECONDS: Final = 30.0


class Vitals:
    """When the main loop and the liveness thread last went round. Made in the main loop."""

    def __init__(self, progress: Progress, liveness: Liveness) -> None:
        self._progress = progress
        self._liveness = liveness
        self._beat_at = monotonic()
        self._beating = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            self._beat_at = monotonic()
            await sleep(_BEAT_SECONDS)

    def health(self) -> Health:
        """From any thread. Ready: it waits for a job or runs one, and its liveness is registered."""
        from queuecore.telemetry.endpoint import Health  # noqa: PLC0415  loaded with the endpoint that asks

        now = monotonic()
        detail = {"phase": self._progress.phase}
        stale = {"loop": now - self._beat_at, "liveness": now - self._liveness.looked_at}
        detail |= {name: f"no round for {age:.0f} s" for name, age in stale.items() if age > _STALE_SECONDS}
        live = len(detail) == 1
        return Health(live=live, ready=live and self._progress.serving and bool(self._liveness.client), detail=detail)
