"""Budgets that refill evenly: ``capacity`` at once, and so much again over each window. Shared by all gateways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple


class Spent(NamedTuple):
    """``remaining`` whole units are left; when refused, enough is there again in ``retry_ms``."""

    allowed: bool
    remaining: int
    retry_ms: int = 0


class Buckets(ABC):
    """Counted on the queue's server, with its clock."""

    @abstractmethod
    async def spend(self, name: str, cost: int, *, capacity: int, window_ms: int, owed: bool = False) -> Spent:
        """Take ``cost`` if it is there; with ``owed`` take it in any case, and the next ones wait for it."""
