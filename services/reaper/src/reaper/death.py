"""Which owners are dead, from what was seen of their connections over time. Pure: no I/O, no clock of its own.

A killed process loses its connections at once; a living one that lost them comes back within the death grace. So an
owner is dead when its connection was missing in every look for a whole grace, and when nothing happened meanwhile
that could have hidden a return:

* The reaper's own connection (the *witness*) is one more client of the same server. A look counts only if the server
  lists the witness, and only together with looks of the same witness: after a break, everything begins anew.
* Owners registered under another ``run_id`` (the server restarted beneath them) are not judged: their lease decides.
* When the server does not say who is connected, nobody is judged.
* When two looks are further apart than ``longest_gap_seconds`` (the reaper was stopped, or the path was), the time
  between them does not count.
* When more than half of at least five owners vanish at once, a proxy or a network is the likelier cause: their grace
  is followed by a second one. At once means in one look or two neighbouring ones, for looks fall where they fall.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

SMALLEST_CROWD: Final = 5


class Look(NamedTuple):
    """One question to the server. Times are seconds of the reaper's own monotonic clock.

    ``witness`` and ``owners`` are connections, ``<run_id>:<client id>``; "" is a witness that is not connected.
    ``living`` are those of them that are open now; None when the server does not say.
    """

    asked_at: float
    answered_at: float
    witness: str
    owners: frozenset[str]
    living: frozenset[str] | None


class _Absence(NamedTuple):
    first_missed_at: float
    grace_from: float


class DeathWatch:
    """Remembers since when each owner has been missing."""

    def __init__(self, *, grace_seconds: float, longest_gap_seconds: float) -> None:
        self._grace = grace_seconds
        self._longest_gap = longest_gap_seconds
        self._witness = ""
        self._last_answer = 0.0
        self._missing: dict[str, _Absence] = {}
        self._seen_alive: frozenset[str] = frozenset()

    def forget(self) -> None:
        """Something broke: what was seen before proves nothing any more."""
        self._witness = ""
        self._missing.clear()
        self._seen_alive = frozenset()

    def was_alive(self, client: str) -> bool:
        """Whether this owner has been seen connected since the last break."""
        return client in self._seen_alive

    def observe(self, look: Look) -> frozenset[str]:
        """The owners that are dead as of this look."""
        if look.living is None or not look.witness or look.witness not in look.living:
            self.forget()
            return frozenset()
        if look.witness != self._witness:
            self.forget()
            self._witness = look.witness
        elif look.answered_at - self._last_answer > self._longest_gap:
            self._missing.clear()
        judged = frozenset(owner for owner in look.owners if run_id(owner) == run_id(look.witness))
        self._seen_alive = (self._seen_alive | look.living) & look.owners
        self._note_missing(judged - look.living, len(judged), look.answered_at)
        self._last_answer = look.answered_at
        return frozenset(
            owner for owner, absence in self._missing.items() if look.asked_at - absence.grace_from >= self._grace
        )

    def _note_missing(self, missing: Collection[str], crowd: int, now: float) -> None:
        before = self._missing
        self._missing = {owner: before.get(owner, _Absence(now, now)) for owner in missing}
        somebody_new = bool(self._missing.keys() - before.keys())
        vanished = [owner for owner in missing if self._missing[owner].first_missed_at >= self._last_answer]
        if somebody_new and crowd >= SMALLEST_CROWD and len(vanished) * 2 > crowd:
            # Only these, and not who was missing before: a steady trickle of deaths must not put off the first.
            self._missing |= {
                owner: _Absence(self._missing[owner].first_missed_at, now + self._grace) for owner in vanished
            }


def run_id(client: str) -> str:
    """The server's run that a connection ``<run_id>:<client id>`` belongs to."""
    return client.rpartition(":")[0]
