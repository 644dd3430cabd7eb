"""Liveness follows the background tasks; readiness asks Redis and the store, not more often than every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from queuecore import clock
from queuecore.blobs import BlobStore
from queuecore.broker import Server, ServerFacts
from queuecore.errors import BlobError, BrokerError
from queuecore.telemetry.endpoint import Health as Probe

REDIS_EVERY_SECONDS: Final = 1.0
STORE_EVERY_SECONDS: Final = 5.0
WATCH_EVERY_SECONDS: Final = 10.0
OLDEST_TASK_SECONDS: Final = 60.0
_ANSWER_WITHIN_SECONDS: Final = 5.0
POLICY: Final = "noeviction"


class Readiness(NamedTuple):
    """``problems`` is empty when ready; ``durability`` says what a crash of Redis can take."""

    problems: Mapping[str, str]
    durability: str


class Health:
    """What the probes answer. ``probe`` may be called from any thread."""

    def __init__(self, server: Server, store: BlobStore, ages: Callable[[], Mapping[str, float]]) -> None:
        self._server = server
        self._store = store
        self._ages = ages
        self._lock = asyncio.Lock()
        self._redis_problem = self._store_problem = "not asked yet"
        self._redis_at = self._store_at = float("-inf")
        self._durability = "unknown: Redis has not answered yet"
        self.draining = False

    def dead_tasks(self) -> dict[str, str]:
        """Background tasks that have not gone round for too long."""
        return {
            name: f"has not gone round for {age:.0f} s"
            for name, age in self._ages().items()
            if age > OLDEST_TASK_SECONDS
        }

    async def ready(self) -> Readiness:
        """Ask what was not asked lately."""
        async with self._lock:
            now = clock.monotonic()
            checks = []
            if now - self._redis_at >= REDIS_EVERY_SECONDS:
                checks.append(self._ask_redis())
            if now - self._store_at >= STORE_EVERY_SECONDS:
                checks.append(self._ask_store())
            _ = await asyncio.gather(*checks)
        return self.last

    @property
    def last(self) -> Readiness:
        """The answer of the last time."""
        problems = {"redis": self._redis_problem, "store": self._store_problem}
        if self.draining:
            problems["gateway"] = "it is shutting down"
        return Readiness({name: text for name, text in problems.items() if text}, self._durability)

    def probe(self) -> Probe:
        """For the metrics port."""
        dead, last = self.dead_tasks(), self.last
        return Probe(live=not dead, ready=not last.problems, detail={**dead, **last.problems})

    async def watch(self, beat: Callable[[], None]) -> None:
        """Keep the last answer fresh, for ever."""
        while True:
            _ = await self.ready()
            beat()
            await clock.sleep(WATCH_EVERY_SECONDS)

    async def _ask_redis(self) -> None:
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_SECONDS):
                facts = await facts_of(self._server)
            self._redis_problem = policy_problem(facts)
            self._durability = durability(facts)
        except (BrokerError, TimeoutError) as error:
            self._redis_problem = f"it does not answer: {str(error) or 'too slow'}"
        self._redis_at = clock.monotonic()

    async def _ask_store(self) -> None:
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_SECONDS):
                await self._store.check()
            self._store_problem = ""
        except (BlobError, TimeoutError) as error:
            self._store_problem = f"it does not answer: {str(error) or 'too slow'}"
        self._store_at = clock.monotonic()


async def facts_of(server: Server) -> ServerFacts:
    """What Redis says of itself; empty when it answers, but not this (a managed server may forbid INFO and CONFIG).

    Raises:
        BrokerError: it does not answer at all.
    """
    try:
        return await server.facts()
    except BrokerError:
        await server.ping()
        return ServerFacts("", "", "", None, "")


def policy_problem(facts: ServerFacts) -> str:
    """ "" unless Redis would throw away jobs under memory pressure; a server that does not say is trusted."""
    if facts.maxmemory_policy in {"", POLICY}:
        return ""
    return (
        f"its maxmemory-policy is {facts.maxmemory_policy}: under memory pressure it would throw jobs away; "
        f"set it to {POLICY}"
    )


def durability(facts: ServerFacts) -> str:
    """Which loss window applies (guarantees, "loss window")."""
    if facts.appendonly is False:
        return "none: without AOF a crash of Redis loses what was accepted since its last snapshot"
    match facts.appendfsync:
        case "always":
            return "full: appendfsync always"
        case "everysec":
            return "appendfsync everysec: a crash of Redis's host can take the last second, submissions included"
        case "no":
            return "appendfsync no: a crash of Redis's host can take what the kernel had not written"
        case _:
            return "unknown: Redis does not tell its appendfsync"
