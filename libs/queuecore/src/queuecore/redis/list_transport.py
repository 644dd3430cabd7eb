"""The list transport (seed 000, design §4): BLMOVE moves an entry, one script claims it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice

from redis.exceptions import NoPermissionError, ResponseError

from queuecore.broker import Claim, QueueCounts, QueueLimits, Reaped, Worker
from queuecore.clock import monotonic
from queuecore.errors import BrokerError, ScriptContractError
from queuecore.job import Status
from queuecore.redis import keys as names
from queuecore.redis.broker import RedisBroker, fields_of, server_ms, tolerant_record
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
        self._index_cursor = "0"

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
                return claim

    async def _claim_popped(self, worker: Worker, claim_id: str, job_id: str, execution_ms: int) -> Claim | None:
        reply = await self._run(
            "claim",
            job_id,
            claim_id=claim_id,
            owner=worker.name,
            owner_client=worker.client,
            lease_ms=self.limits.lease_ms,
            execution_ms=execution_ms,
        )
        self._popped = None
        match reply:
            case ["claimed", *flat]:
                record = tolerant_record({"id": job_id} | fields_of(flat))
                return Claim(record, record.fence, claim_id)
            case ["dropped" | "moved" | "held" | "cancelled" | "expired" | "deadletter"]:
                return None
            case _:
                raise ScriptContractError(f"claim answered {reply}")

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

    async def counts(self) -> QueueCounts:
        keys = self.keys
        pending, processing, delayed, paused, dead, state, oldest, outbox, verdict = await self._link.pipeline(
            [
                ("LLEN", keys.pending),
                ("LLEN", keys.processing),
                ("ZCARD", keys.delayed),
                ("LLEN", keys.paused),
                ("LLEN", keys.deadletter),
                ("HMGET", keys.state, "ordered", "paused", "paused_until"),
                ("ZRANGE", keys.waiting, 0, 0, "WITHSCORES"),
                ("XLEN", keys.outbox),
                ("XRANGE", keys.outbox, "-", "+", "COUNT", 1),
            ]
        )
        now = self._clock() if self._clock else await server_ms(self._link)
        created = oldest[0][1] if oldest and isinstance(oldest[0], list) else oldest[1] if oldest else None
        return QueueCounts(
            pending=pending,
            processing=processing,
            delayed=delayed,
            paused=paused,
            ordered=int(state[0] or 0),
            deadletter=dead,
            outbox=outbox,
            oldest_pending_ms=None if created is None else max(0, now - int(float(created))),
            paused_reason=state[1] or "",
            paused_until=int(state[2]) if state[2] else None,
            oldest_outbox_ms=now - int(fields_of(verdict[0][1]).get("finished_at", now)) if verdict else None,
        )

    async def _held(self, limit: int) -> Sequence[str]:
        return list(dict.fromkeys(await self._link.call("LRANGE", self.keys.processing, 0, limit - 1)))

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

    # -- upkeep that depends on the structures ------------------------------------------------------------------

    async def reconcile(self, *, grace_ms: int = 30_000, limit: int = 1_000) -> Sequence[Reaped]:
        cursor, flat = await self._link.call("ZSCAN", self.keys.jobs, self._index_cursor, "COUNT", limit)
        self._index_cursor = cursor
        ids = list(dict.fromkeys(flat[::2] if not flat or not isinstance(flat[0], list) else [one for one, _ in flat]))
        rows = await self._link.pipeline([("HMGET", names.job(job_id), "status", "ordering_key") for job_id in ids])
        live = {
            job_id: row[1]
            for job_id, row in zip(ids, rows, strict=True)
            if isinstance(row, list) and row[0] in {Status.PENDING, Status.PROCESSING}
        }
        gone = [job_id for job_id, row in zip(ids, rows, strict=True) if isinstance(row, list) and row[0] is None]
        for job_id in islice(gone, limit):  # the index forgets jobs whose record went with its retention
            _ = await self._run("sweep", job_id)
        known = await self._standing() if live else set[str]()
        found: list[Reaped] = []
        for job_id, ordering_key in live.items():
            if job_id in known and not ordering_key:
                continue
            reply = await self._run("reconcile", job_id, grace_ms=grace_ms)
            if reply[0] != "ok":
                found.append(Reaped(job_id, reply[0]))  # pyright: ignore[reportArgumentType]  words of its header
        return found

    async def _standing(self) -> set[str]:
        """Every id in pending, processing, paused or delayed now, read in pages."""
        found: set[str] = set()
        for key in (self.keys.processing, self.keys.pending, self.keys.paused):
            start = 0
            while page := await self._link.call("LRANGE", key, start, start + 9_999):
                found.update(page)
                start += len(page)
        start = 0
        while page := await self._link.call("ZRANGE", self.keys.delayed, start, start + 9_999):
            found.update(page)
            start += len(page)
        return found

    async def purge(self, *, limit: int = 1_000) -> int:
        pending, paused, delayed, held_back = await self._link.pipeline(
            [
                ("LRANGE", self.keys.pending, 0, limit - 1),
                ("LRANGE", self.keys.paused, 0, limit - 1),
                ("ZRANGE", self.keys.delayed, 0, limit - 1),
                ("HKEYS", self.keys.ordering),
            ]
        )
        behind = await self._link.pipeline(
            [("LRANGE", self.keys.ordered(key), 0, limit - 1) for key in held_back[:limit]]
        )
        # Those behind their key first: a purged head would let its next in.
        ids = dict.fromkeys([*(one for row in behind for one in reversed(row)), *reversed(pending), *paused, *delayed])
        count = 0
        for job_id in islice(ids, limit):
            count += (await self._run("purge", job_id))[0] == "purged"
        return count
