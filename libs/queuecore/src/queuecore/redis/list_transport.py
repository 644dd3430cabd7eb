"""The list transport (seed 000, design §4): BLMOVE moves an entry, one script claims it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from redis.exceptions import NoPermissionError, ResponseError

from queuecore.broker import Claim, QueueLimits, Worker
from queuecore.clock import monotonic
from queuecore.errors import BrokerError, ScriptContractError
from queuecore.redis.broker import Depths, RedisBroker
from queuecore.redis.client import AnyConnection, Link, exchange, raise_refusal

_UNBLOCK_EVERY_SECONDS = 0.02
_FOR_EVER_SECONDS = 10 * 365 * 86_400.0


class ListBroker(RedisBroker):
    """A queue whose waiting jobs are a Redis list."""

    transport = "list"

    def __init__(self, link: Link, model: str, limits: QueueLimits, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(link, model, limits, clock=clock)
        self._popper: AnyConnection | None = None
        self._popper_id = 0
        self._may_unblock = True
        self._popping = False
        self._interrupted = False
        self._popped: tuple[str, str] | None = None  # (claim_id, job id) moved, its claim's reply not seen yet
        self._sweep_offset = 0

    # -- claim --------------------------------------------------------------------------------------------------

    async def claim(
        self, worker: Worker, claim_id: str, *, wait_seconds: float | None = 0, execution_ms: int = 3_600_000
    ) -> Claim | None:
        end = None if wait_seconds is None else monotonic() + wait_seconds
        if self._popped and self._popped[0] == claim_id:  # a repeat: that script may have run
            claim = await self._claim_popped(worker, claim_id, self._popped[1], execution_ms)
            if claim is not None:
                return claim
        while True:
            job_id = await self._pop(end)
            if job_id is None:
                return None
            self._popped = (claim_id, job_id)
            if self._interrupted:
                _ = await self._run("release", job_id, fence="", claim_id="")
                self._popped = None
                return None
            claim = await self._claim_popped(worker, claim_id, job_id, execution_ms)
            if claim is not None:
                return claim  # one that a gate refuses waits in delayed: the next is popped

    async def _claim_popped(self, worker: Worker, claim_id: str, job_id: str, execution_ms: int) -> Claim | None:
        claim = await self._claim_entry(worker, claim_id, job_id, execution_ms)
        self._popped = None
        return claim if isinstance(claim, Claim) else None

    async def _pop(self, end: float | None) -> str | None:
        """The id that one BLMOVE moved, or None at ``end`` or when interrupted."""
        left = None if end is None else end - monotonic()
        if left is not None and left <= 0:
            return None if self._interrupted else await self._link.call("LMOVE", *self._ends())
        connection = await self._pop_connection()
        while not self._interrupted:
            block = 0.0 if left is None else max(left, 0.001)
            if not self._may_unblock:
                block = min(block or 1.0, 1.0)
            self._popping = True
            try:
                moved = await exchange(
                    connection,
                    ("BLMOVE", *self._ends(), f"{block:.3f}"),
                    _FOR_EVER_SECONDS if not block else block + 10,
                )
            except ResponseError as error:
                raise_refusal("BLMOVE", error)
                if "UNBLOCKED" in str(error):
                    return None
                raise ScriptContractError(f"BLMOVE: {error}") from error
            except BaseException:
                # Half a reply, or one on its way: whoever it moved is the reaper's to find.
                await connection.disconnect(nowait=True)
                raise
            finally:
                self._popping = False
            left = None if end is None else end - monotonic()
            if moved is not None or (left is not None and left <= 0):
                return moved
        return None

    def _ends(self) -> tuple[str, str, str, str]:
        return self.keys.pending, self.keys.processing, "LEFT", "RIGHT"

    async def _pop_connection(self) -> AnyConnection:
        if self._popper is None:
            self._popper = self._link.new_connection()
        if not self._popper.is_connected:
            await self._link.open(self._popper)
            self._popper_id = int(await exchange(self._popper, ("CLIENT", "ID"), None))
            try:
                _ = await exchange(self._popper, ("CLIENT", "UNBLOCK", self._popper_id), None)
            except NoPermissionError:
                self._may_unblock = False  # then a pop blocks for a second at the most
            except ResponseError as error:
                raise ScriptContractError(f"CLIENT UNBLOCK: {error}") from error
        return self._popper

    async def interrupt(self) -> None:
        self._interrupted = True
        while self._popping and self._may_unblock:
            # An UNBLOCK that arrives before the BLMOVE answers 0 and is lost: repeat it until the reply was read.
            try:
                _ = await self._link.call("CLIENT", "UNBLOCK", self._popper_id)
            except BrokerError:
                if self._popper is not None and self._popping:
                    await self._popper.disconnect(nowait=True)
                return
            await asyncio.sleep(_UNBLOCK_EVERY_SECONDS)

    async def aclose(self) -> None:
        """Close the connection that pops."""
        if self._popper is not None:
            await self._popper.disconnect(nowait=True)

    # -- looking ------------------------------------------------------------------------------------------------

    async def position(self, job_id: str, *, limit: int = 10_000) -> int | None:
        return await self._link.call("LPOS", self.keys.pending, job_id, "MAXLEN", limit)

    async def _depths(self) -> Depths:
        keys = (self.keys.pending, self.keys.processing, self.keys.paused)
        return Depths(*await self._link.pipeline([("LLEN", key) for key in keys]))

    async def _held(self, limit: int, after: str = "") -> tuple[Sequence[str], str]:
        start = int(after or 0)
        found = await self._link.call("LRANGE", self.keys.processing, start, start + limit - 1)
        return self._page_of(found, limit, after)

    async def _entries(self, limit: int) -> Sequence[tuple[str, str]]:
        start = self._sweep_offset
        held, waiting = await self._link.pipeline(
            [
                ("LRANGE", self.keys.processing, 0, limit - 1),
                ("LRANGE", self.keys.pending, start, start + limit - 1),
            ]
        )
        self._sweep_offset = start + limit if len(waiting) == limit else 0
        return [*((one, "processing") for one in held), *((one, "pending") for one in waiting)]

    async def _standing(self) -> set[str]:
        keys = (self.keys.processing, self.keys.pending, self.keys.paused)
        return set[str]().union(*[await self._paged("LRANGE", key) for key in keys])

    async def _waiting(self, limit: int) -> tuple[Sequence[str], Sequence[str]]:
        pending, paused = await self._link.pipeline(
            [("LRANGE", key, 0, limit - 1) for key in (self.keys.pending, self.keys.paused)]
        )
        return pending, paused
