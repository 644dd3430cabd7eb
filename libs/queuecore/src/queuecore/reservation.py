"""Idempotency keys: one request, one job, however often it is sent.

A key is reserved before the first byte of the body is read, with a short life that its holder extends while the upload
runs. ``submit`` checks the reservation again and stores the answer in the step that makes the job (guarantee G1), so
there is no instant at which a job exists whose key does not name it. The answer lives exactly as long as the record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, NamedTuple, TypeAlias

LIFE_MS: Final = 12_000  # a holder that was killed frees its key after this


class Scope(NamedTuple):
    """Which key: two tenants or two routes never share one."""

    tenant: str
    route: str
    key: str


class Reservation(NamedTuple):
    """What ``submit`` needs of it. ``fingerprint`` tells the request apart from others under the same key."""

    scope: Scope
    token: str
    fingerprint: str


class Reserved(NamedTuple):
    """The key is the caller's for ``LIFE_MS``; a repeat with the same token extends that."""


class Held(NamedTuple):
    """Another request under this key is still being accepted."""


class Answered(NamedTuple):
    """A request under this key made this job, whose record is still there."""

    job_id: str
    fingerprint: str


Reply: TypeAlias = Reserved | Held | Answered


class Reservations(ABC):
    """The keys of one queue server. A repeat after an unknown outcome has no second effect."""

    @abstractmethod
    async def reserve(self, scope: Scope, token: str, *, life_ms: int = LIFE_MS) -> Reply:
        """Take the key, or keep it, or say who has it."""

    @abstractmethod
    async def free(self, scope: Scope, token: str) -> None:
        """Give up a reservation that led to no job; an answer and others' reservations stay."""
