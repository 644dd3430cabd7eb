"""After Redis was away, owners get one lease of time before the lapse of a lease counts against them. Pure.

Through a restart, a failover or an outage nobody could renew, so leases lapse whose owners live. From the moment the
reaper reaches the server again, nothing that a lapsed lease decides is done for one lease of the model.

A reaper that has just started knows nothing of an outage before its time. It sees one by its traces: claims that name
a connection of another run of the server, or claims while its own first calls failed. A model without either is not
held, so a fresh stack works at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from reaper.death import run_id


class RestartGrace:
    """Per model, until when nothing is reaped. Times are seconds of the reaper's own monotonic clock."""

    def __init__(self, lease_seconds: Mapping[str, float]) -> None:
        self._lease_seconds = lease_seconds
        self._witness = ""
        self._away = False
        self._was_away_at_start = False
        self._begun: set[str] = set()
        self._until: dict[str, float] = {}

    @property
    def witness(self) -> str:
        """The reaper's own connection, ``<run_id>:<client id>``; "" before the first one and during an outage."""
        return "" if self._away else self._witness

    def away(self) -> None:
        """A call did not reach the server, or its answer did not come back."""
        self._away = True
        self._was_away_at_start |= not self._witness

    def connected(self, witness: str, now: float) -> bool:
        """The witness is connected (again); whether that begins a grace."""
        first = not self._witness
        self._witness, self._away = witness, False
        if first:
            return False
        self._until = {model: now + seconds for model, seconds in self._lease_seconds.items()}
        return True

    def answered(self, now: float) -> bool:
        """A call was answered; whether that ends an outage and begins a grace."""
        if not self._away or not self._witness:
            return False
        return self.connected(self._witness, now)

    def begin(self, model: str, clients: Collection[str], now: float) -> bool:
        """The first look at a model: ``clients`` own its claims. Whether a grace begins."""
        self._begun.add(model)
        strangers = any(run_id(client) != run_id(self._witness) for client in clients)
        if strangers or (clients and self._was_away_at_start):
            self._until[model] = max(self._until.get(model, 0.0), now + self._lease_seconds[model])
            return True
        return False

    def begun(self, model: str) -> bool:
        """Whether ``begin`` was called for this model."""
        return model in self._begun

    def holds(self, model: str, now: float) -> bool:
        """Whether nothing of this model may be reaped now."""
        return self._away or not self._witness or now < self._until.get(model, now)
