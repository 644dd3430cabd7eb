"""Notices: a verdict on its way to the address that its client gave (webhooks).

The plan of a notice (its body, the next attempt, what came of the others) lives on the queue's server, so any number of
gateways work on it and a restart of all of them forgets nothing. Each attempt is claimed before it is made; a claim
whose gateway died comes up again after its lease.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec


class NoticeStatus(StrEnum):
    """Where a notice stands. Only ``pending`` has a next attempt; the others can be planned anew by hand."""

    PENDING = "pending"
    DELIVERED = "delivered"
    STOPPED = "stopped"  # the receiver said 410
    PARKED = "parked"  # given up: too many failures, or an address that is not allowed


class NewNotice(NamedTuple):
    """``body`` is what is sent, byte for byte, at every attempt. ``target`` is the receiver that shares a limit."""

    event_id: str
    job_id: str
    model: str
    tenant: str
    url: str
    target: str
    body: str
    traceparent: str = ""  # of the submission


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the delivery log."""

    at: int
    outcome: str
    status: int | None = None
    error: str = ""
    address: str = ""
    seconds: float = 0.0
    answer: str = ""


class DueNotice(NamedTuple):
    """A claimed attempt. ``attempt`` counts from 1 since the notice was planned, which was ``planned_ago_ms`` ago."""

    notice: NewNotice
    token: str
    attempt: int
    planned_ago_ms: int


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What operators see of a notice; ``log`` is filled by ``get`` only."""

    event_id: str
    job_id: str
    model: str
    tenant: str
    url: str
    status: str
    attempts: int
    planned_at: int
    next_at: int | None
    last_error: str
    body: str
    log: Sequence[Attempt] = ()


class Notices(ABC):
    """All notices of one queue server. A repeat after an unknown outcome has no second effect, ``due`` excepted:
    what it claimed comes up again after the lease.
    """

    @abstractmethod
    async def plan(self, notice: NewNotice) -> bool:
        """Due now; False when this event was planned before: nothing changed."""

    @abstractmethod
    async def due(
        self, token: str, *, limit: int, per_target: int, skip: Sequence[str] = (), lease_ms: int
    ) -> Sequence[DueNotice]:
        """Claim attempts whose time has come: at most ``per_target`` of each target, none of those in ``skip``."""

    @abstractmethod
    async def settle(
        self, due: DueNotice, attempt: Attempt, status: NoticeStatus, *, retry_in_ms: int = 0, retain_ms: int
    ) -> bool:
        """What came of a claimed attempt; False when somebody else has claimed it since: nothing changed."""

    @abstractmethod
    async def redeliver(self, event_id: str) -> bool:
        """Plan it anew, whatever came of it; False when it is not there."""

    @abstractmethod
    async def get(self, event_id: str) -> Notice | None:
        """One notice with its log."""

    @abstractmethod
    async def page(
        self, *, status: NoticeStatus | None = None, limit: int = 50, cursor: str = ""
    ) -> tuple[Sequence[Notice], str]:
        """Newest first; a page that filters much away ends early, with a cursor."""

    @abstractmethod
    async def parked(self) -> int:
        """How many are given up."""
