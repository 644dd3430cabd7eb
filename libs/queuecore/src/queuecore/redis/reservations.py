"""Idempotency keys on Redis."""

from __future__ import annotations

from queuecore.errors import ScriptContractError
from queuecore.redis import keys as names
from queuecore.redis import scripts
from queuecore.redis.client import Link
from queuecore.reservation import LIFE_MS, Answered, Held, Reply, Reservations, Reserved, Scope


class RedisReservations(Reservations):
    """One hash a key."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def reserve(self, scope: Scope, token: str, *, life_ms: int = LIFE_MS) -> Reply:
        script = scripts.load("edge/reserve", "")
        reply = await script(
            self._link,
            {"idem": names.idempotency(scope), "token": token, "life_ms": life_ms, "job_prefix": names.job("")},
        )
        match reply:
            case ["reserved"]:
                return Reserved()
            case ["held"]:
                return Held()
            case ["answered", job_id, fingerprint]:
                return Answered(job_id, fingerprint)
            case _:
                raise ScriptContractError(f"reserve answered {reply}")

    async def free(self, scope: Scope, token: str) -> None:
        _ = await scripts.load("edge/free", "")(self._link, {"idem": names.idempotency(scope), "token": token})
