"""The fast death notice: an owner whose connection is gone for a whole grace loses its job before its lease is over.

Every second (twice a grace, if that is shorter) one question: which of these connections are open? What follows from
the answers is decided in ``reaper.death``; the script compares the registered connection again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from queuecore.broker import Broker, OwnedClaim, Server
from queuecore.clock import monotonic
from queuecore.errors import QueueCoreError
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event
from reaper.death import DeathWatch, Look
from reaper.grace import RestartGrace
from reaper.passes.reap import note

CAUSE = "its connection is gone"

_log = logging.getLogger(__name__)


class DeathNotice:
    """Watches the owners of all models together: a crowd that vanishes at once is seen as one."""

    def __init__(self, server: Server, brokers: Sequence[Broker], watch: DeathWatch, grace: RestartGrace) -> None:
        self._server = server
        self._brokers = brokers
        self._watch = watch
        self._grace = grace
        self._silent = False

    async def look(self) -> None:
        """One look, and the reaping of those that are dead.

        Raises:
            QueueCoreError: something did not answer; all that was seen is forgotten.
        """
        try:
            await self._look()
        except BaseException:
            self._watch.forget()
            raise

    async def _look(self) -> None:
        owned = {broker.model: await broker.owners() for broker in self._brokers}
        witness = self._grace.witness
        owners = frozenset(claim.client for claims in owned.values() for claim in claims)
        asked_at = monotonic()
        living = await self._server.living_clients([witness, *owners]) if witness else frozenset[str]()
        self._say_once(silent=living is None)
        dead = self._watch.observe(Look(asked_at, monotonic(), witness, owners, living))
        if dead:
            await self._reap(owned, dead)

    async def _reap(self, owned: Mapping[str, Sequence[OwnedClaim]], dead: frozenset[str]) -> None:
        problem: QueueCoreError | None = None
        for broker in self._brokers:
            held = self._grace.holds(broker.model, monotonic())
            for claim in owned[broker.model]:
                # During a restart grace only those count that were seen alive since: the others had no time to return.
                if claim.client not in dead or (held and not self._watch.was_alive(claim.client)):
                    continue
                try:
                    reaped = await broker.reap_dead(claim, CAUSE)
                except QueueCoreError as error:
                    problem = error
                    break
                fields = {"model": broker.model, "job_id": claim.job_id, "outcome": reaped.outcome}
                _log.warning("an owner is dead", extra={"event": Event.DEATH_NOTICED, "client": claim.client} | fields)
                metrics.DEATH_NOTICES.labels(broker.model, reaped.outcome).inc()
                note(broker, reaped, CAUSE)
        if problem is not None:
            raise problem

    def _say_once(self, *, silent: bool) -> None:
        if silent and not self._silent:
            _log.warning(
                "the server does not list its clients (the Redis user needs client|list): leases alone decide",
                extra={"event": Event.DEATH_DOUBTED},
            )
        self._silent = silent
