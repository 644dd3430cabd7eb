"""What one reaper consists of: which passes it runs, on which queues, how often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from queuecore.blobs import BlobStore
from queuecore.broker import Broker, Server, Signals
from queuecore.clock import monotonic
from queuecore.telemetry import metrics
from queuecore.telemetry.endpoint import Health
from queuecore.telemetry.names import Event
from reaper.death import DeathWatch
from reaper.grace import RestartGrace
from reaper.ledger import Ledger
from reaper.loop import Loops, Pass, Work
from reaper.passes.death import DeathNotice
from reaper.passes.depth import Depths
from reaper.passes.expire import expire
from reaper.passes.memory import show_memory
from reaper.passes.promote import promote
from reaper.passes.reap import COUNTED, SORTED, Pace, reap
from reaper.passes.reconcile import OUTCOMES, reconcile
from reaper.passes.revoke import revoke
from reaper.passes.store import StoreSweep
from reaper.passes.sweep import sweep
from reaper.settings import ReaperSettings

LOOK_EVERY_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class Upkeep:
    """One reaper over some queues and their store. Any number of them may run side by side."""

    def __init__(
        self,
        settings: ReaperSettings,
        brokers: Sequence[Broker],
        *,
        server: Server,
        signals: Signals,
        store: BlobStore | None,
    ) -> None:
        self._brokers = brokers
        self._signals = signals
        self._ledger = Ledger(monotonic())
        self.grace = RestartGrace({broker.model: broker.limits.lease_ms / 1000 for broker in brokers})
        # Twice a grace at the least; two looks that are a grace apart have seen nothing of what lay between.
        look_every = min(LOOK_EVERY_SECONDS, settings.death_grace_seconds / 2)
        watch = DeathWatch(
            grace_seconds=settings.death_grace_seconds,
            longest_gap_seconds=max(settings.death_grace_seconds, 2 * LOOK_EVERY_SECONDS),
        )
        notice = DeathNotice(server, brokers, watch, self.grace)
        depths = {broker.model: Depths(broker) for broker in brokers}
        every = settings.interval_seconds
        self.passes: tuple[Pass, ...] = (
            Pass("death", look_every, {"all": notice.look}, asks=True),
            Pass("promote", min(1.0, every), self._each(promote), asks=True),
            Pass("reap", every, self._each(partial(reap, grace=self.grace, pace=Pace()))),
            Pass("revoke", every, self._each(partial(revoke, grace=self.grace))),
            Pass("expire", every, self._each(expire), asks=True),
            Pass("sweep", every, self._each(sweep), asks=True),
            Pass("reconcile", 3 * every, self._each(partial(reconcile, grace=self.grace))),
            Pass("depth", every, {model: depth.show for model, depth in depths.items()}, asks=True),
        )
        self.passes += (Pass("memory", 3 * every, {"all": partial(show_memory, server)}, asks=True, vital=False),)
        if store is not None:
            swept = StoreSweep(store, server, orphan_min_age_seconds=settings.orphan_min_age_seconds)
            self.passes += (Pass("store", 12 * every, {"all": swept.sweep}, vital=False),)
        self.loops = Loops(self.passes, self._ledger, self.grace)
        self._show_zeros()

    def _each(self, work: Callable[[Broker], Awaitable[None]]) -> Mapping[str, Work]:
        return {broker.model: partial(work, broker) for broker in self._brokers}

    def _show_zeros(self) -> None:
        # A counter that appears with its first event has no increase to alert on.
        for broker in self._brokers:
            _ = metrics.DUPLICATE_RESULTS_SUPPRESSED.labels(broker.model)
            if broker.limits.order in SORTED:
                _ = metrics.CLAIMS_EXPIRED.labels(broker.model)
            for outcome in COUNTED:
                _ = metrics.JOBS_REAPED.labels(broker.model, outcome)
            for state in ("pending", "processing"):
                _ = metrics.ORPHANS_SWEPT.labels(broker.model, state)
            for outcome in OUTCOMES:
                _ = metrics.RECONCILED.labels(broker.model, outcome)
            _ = metrics.REVOKED.labels(broker.model)

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``; raises what a loop could not survive."""
        async with asyncio.TaskGroup() as group:
            witness = group.create_task(self._witness(), name="witness")
            try:
                await self.loops.run(stop)
            finally:
                _ = witness.cancel()

    async def _witness(self) -> None:
        """Hold one subscription, as relays do: it shows whether connections to this server hold."""
        async for _ in self._signals.cancels(self._brokers[0].model, self._connected):
            pass  # whose job is cancelled does not matter here

    def _connected(self, witness: str) -> None:
        if self.grace.connected(witness, monotonic()):
            _log.warning(
                "connected to Redis again: nothing is reaped for one lease", extra={"event": Event.GRACE_STARTED}
            )

    def health(self) -> Health:
        """For the endpoint, from any thread."""
        return self._ledger.health(monotonic())
