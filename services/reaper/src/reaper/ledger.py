"""What the passes achieved, for health, metrics and the log. Read by the endpoint's thread, written by the loops.

Liveness follows success, not the process: a pass that reached no part (no model) for too long means that this process
does not do its work. Readiness is stricter: the last attempt at every part succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from queuecore.telemetry.endpoint import Health

# Longer than Redis needs to restart: restarting the reaper beside it would only lose what it remembers.
DEAF_AFTER_SECONDS: Final = 180.0
BROKEN_AFTER_SECONDS: Final = 600.0


class _Part(NamedTuple):
    succeeded_at: float
    problem: str


class Ledger:
    """Successes and failures of each pass on each of its parts (a model, or the server or store as a whole)."""

    def __init__(self, now: float) -> None:
        self._started_at = now
        self._parts: dict[tuple[str, str], _Part] = {}
        self._vital: dict[str, float] = {}

    def expect(self, name: str, parts: Iterable[str], *, every_seconds: float, vital: bool) -> None:
        """A pass that will report; ``vital`` ones decide about liveness."""
        self._parts |= {(name, part): _Part(self._started_at, "not looked yet") for part in parts}
        if vital:
            self._vital[name] = every_seconds

    def succeeded(self, name: str, part: str, now: float) -> bool:
        """Note a success; whether a failure came before."""
        before = self._parts[name, part]
        self._parts[name, part] = _Part(now, "")
        return before.problem not in {"", "not looked yet"}

    def failed(self, name: str, part: str, problem: str) -> bool:
        """Note a failure; whether it is news."""
        before = self._parts[name, part]
        self._parts[name, part] = before._replace(problem=problem)
        return before.problem != problem

    def overdue(self, now: float, *, after_seconds: float) -> list[str]:
        """Vital passes that reached none of their parts for ``after_seconds`` and ten of their own intervals."""
        last: dict[str, float] = {}
        for (name, _), part in list(self._parts.items()):
            last[name] = max(last.get(name, 0.0), part.succeeded_at)
        return [
            name
            for name, every_seconds in self._vital.items()
            if now - last.get(name, self._started_at) > after_seconds + 10 * every_seconds
        ]

    def health(self, now: float) -> Health:
        """For the endpoint."""
        overdue = self.overdue(now, after_seconds=DEAF_AFTER_SECONDS)
        problems = {
            f"{name} {part}": entry.problem for (name, part), entry in list(self._parts.items()) if entry.problem
        }
        problems |= dict.fromkeys(overdue, f"no success for over {DEAF_AFTER_SECONDS:.0f} s")
        return Health(live=not overdue, ready=not problems, detail=problems)
