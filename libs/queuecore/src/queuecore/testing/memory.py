"""The in-memory queue: the specification behind the ``Broker`` contract, for tests that need no Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, cast

import msgspec

from queuecore.broker import (
    FOREIGN,
    Broker,
    Cancelled,
    Claim,
    Failure,
    JobPage,
    NewJob,
    OutboxEvent,
    OwnedClaim,
    Progress,
    QueueCounts,
    QueueLimits,
    Reaped,
    ReapOutcome,
    Renewed,
    Result,
    Server,
    ServerFacts,
    Signals,
    Submitted,
    Worker,
)
from queuecore.errors import (
    ClaimLost,
    DuplicateItem,
    JobExpired,
    JobNotFound,
    QueueFull,
    ReservationLost,
    ResultReused,
    TenantQueueFull,
    WrongState,
)
from queuecore.gates import Ledger
from queuecore.job import JobRecord, Status, record_from_fields
from queuecore.reservation import LIFE_MS, Answered, Held, Reply, Reservation, Reservations, Reserved, Scope
from queuecore.testing.buckets import MemoryBuckets
from queuecore.testing.clock import ManualClock
from queuecore.testing.notices import MemoryNotices
from queuecore.testing.response_cache import MemoryResponseCache
from queuecore.testing.specification import Event, Job, Specification, State

RUN_ID = "memory"


class MemoryQueue:
    """One process's access to queues that live in this object."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.specifications: dict[str, Specification] = {}
        self.tombstones: dict[str, tuple[int, dict[str, str]]] = {}
        self.listeners: list[Callable[[str, str, str], None]] = []  # (model, channel, payload)
        self.arrival = asyncio.Event()
        self.signals = MemorySignals(self)
        self.server = MemoryServer(self)
        self.reservations = MemoryReservations(self)
        self.notices = MemoryNotices(self.clock)
        self.buckets = MemoryBuckets(self.clock)
        queues = self.specifications
        self.cache = MemoryResponseCache(self.clock, lambda: [one.state.reusable for one in queues.values()])
        self.ledger = Ledger()  # of the gates of every queue

    def broker(self, model: str, limits: QueueLimits | None = None) -> MemoryBroker:
        """A broker of the model's queue; brokers of one model share it."""
        specification = self.specifications.setdefault(
            model, Specification(limits or QueueLimits(), State(ledger=self.ledger), peers=self.specifications)
        )
        return MemoryBroker(self, model, specification)

    def publish(self, model: str, channel: str, payload: str) -> None:
        """Tell every listener."""
        for listener in list(self.listeners):
            listener(model, channel, payload)

    def pump(self) -> None:
        """After any step: pass time, deliver wake-ups, wake waiting claims."""
        now = self.clock()
        for model, specification in self.specifications.items():
            for job in specification.state.jobs.values():
                if job.tombstone_until is not None:
                    self.tombstones[job.id] = (job.tombstone_until, _tombstone(model, job))
                else:
                    _ = self.tombstones.pop(job.id, None)
            specification.forget_expired(now)
            specification.wake(now)
            changes, specification.state.changes = specification.state.changes, []
            for channel, job_id in changes:
                payload = json.dumps({"job_id": job_id}) if channel == "cancel" else job_id
                if channel == "completed":
                    payload = json.dumps({"job_id": job_id, "status": specification.state.jobs[job_id].status})
                self.publish(model, channel, payload)
        self.arrival.set()
        self.arrival = asyncio.Event()

    async def aclose(self) -> None:
        """Nothing to close."""


class MemoryBroker(Broker):
    """The contract over one specification."""

    def __init__(self, queue: MemoryQueue, model: str, specification: Specification) -> None:
        self.model = model
        self.limits = specification.limits
        self.specification = specification
        self.queue = queue
        self._interrupted = False
        self._unacknowledged: dict[str, OutboxEvent] = {}
        self._held_after: dict[str, int] = {}

    @property
    def _now(self) -> int:
        self.queue.pump()
        return self.queue.clock()

    def _home(self, job_id: str) -> Specification:
        """Where a pipeline's run stands, whichever stage's queue is asked."""
        homes = [one for one in self.queue.specifications.values() if job_id in one.state.jobs]
        return homes[0] if homes and homes[0].state.jobs[job_id].plan else self.specification

    # -- clients ------------------------------------------------------------------------------------------------

    async def submit(self, job: NewJob) -> Submitted:
        now, held, keys = self._now, job.reservation, self.queue.reservations
        if held and job.id not in self.specification.state.jobs:
            others = keys.holder(held.scope) not in {"", held.token}
            if others or keys.answer(held.scope):
                raise ReservationLost("another request with this Idempotency-Key is or was being accepted")
        reply = self.specification.submit(job, now)
        if held and reply[0] == "created":
            keys.settle(job.id, held)
        self.queue.pump()
        if reply[0] == "duplicate":
            raise DuplicateItem(reply[1])
        if reply[0] == "cached":
            raise ResultReused(reply[1])
        if reply == ("tenant_full",):
            raise TenantQueueFull(self.model, self.tenant_cap(job) or 0)
        if reply == ("full",):
            raise QueueFull(self.model, self.limits.max_pending)
        if reply[0] == "created":
            return Submitted(created=True, status=Status(reply[1]), created_at=self.queue.clock())
        return Submitted(created=False, status=Status(reply[1]))

    async def get(self, job_id: str) -> JobRecord:
        now = self._now
        for model, specification in self.queue.specifications.items():
            if job_id in specification.state.jobs:
                return record_of(model, specification.state.jobs[job_id])
        until, tombstone = self.queue.tombstones.get(job_id, (0, {}))
        if until > now:
            raise JobExpired(job_id, tombstone)
        raise JobNotFound(job_id)

    async def position(self, job_id: str, *, limit: int = 10_000) -> int | None:
        pending = self.specification.state.pending[:limit]
        return pending.index(job_id) if job_id in pending else None

    async def cancel(self, job_id: str) -> Cancelled:
        reply = self._home(job_id).cancel(job_id, self._now)
        self.queue.pump()
        match reply:
            case ("cancelled", when):
                return Cancelled(Status.CANCELLED, already=when == "before")
            case ("processing",):
                return Cancelled(Status.PROCESSING)
            case ("over", status):
                raise WrongState(job_id, status)
            case _:
                _ = await self.get(job_id)
                raise JobNotFound(job_id)

    async def erase(self, job_id: str) -> None:
        now, state = self._now, self._home(job_id).state
        job = state.jobs.get(job_id)
        if job is None:
            _ = await self.get(job_id)
            raise JobNotFound(job_id)
        if not job.terminal:
            raise WrongState(job_id, job.status)
        del state.jobs[job_id]
        _ = state.progress.pop(job_id, None)
        tombstone = _tombstone(self.model, job) | {"cause": "deleted"}
        self.queue.tombstones[job_id] = now + self.limits.retention.tombstone_ms, tombstone

    async def jobs(
        self, *, status: Status | None = None, tenant: str | None = None, limit: int = 50, cursor: str = ""
    ) -> JobPage:
        _ = self._now
        everything = sorted(
            (record_of(self.model, job) for job in self.specification.state.jobs.values()),
            key=lambda record: (record.created_at, record.id),
            reverse=True,
        )
        score, _, last = cursor.partition(":")
        found = [
            record
            for record in everything
            if (status is None or record.status == status)
            and (tenant is None or record.tenant == tenant)
            and (not cursor or (record.created_at, record.id) < (int(score), last))
        ]
        page = found[:limit]
        return JobPage(page, f"{page[-1].created_at}:{page[-1].id}" if len(found) > limit else "")

    # -- the owner of a claim -----------------------------------------------------------------------------------

    async def claim(
        self, worker: Worker, claim_id: str, *, wait_seconds: float | None = 0, execution_ms: int = 3_600_000
    ) -> Claim | None:
        loop = asyncio.get_running_loop()
        end = None if wait_seconds is None else loop.time() + wait_seconds
        passed: set[str] = set()  # entries that a gate refuses
        while not self._interrupted:
            current = [
                job.id
                for job in self.specification.state.jobs.values()
                if job.claim_id == claim_id and job.status is Status.PROCESSING
            ]
            peeks = self.specification.peeks
            job_id = current[0] if current else self.specification.peek(passed) if peeks else self.specification.pop()
            if job_id is not None:
                word = self.specification.claim(
                    job_id, claim_id, self._now, owner=worker.name, client=worker.client, execution_ms=execution_ms
                )
                self.queue.pump()
                if word == "claimed":
                    record = record_of(self.model, self.specification.state.jobs[job_id])
                    return Claim(record, record.fence, claim_id)
                refusal = self.specification.refusal if word == "waiting" and peeks else None
                passed |= {job_id} if refusal else set()
                if not current and not (refusal and refusal.whole_queue):
                    continue
            passed.clear()
            arrival = self.queue.arrival
            left = None if end is None else end - loop.time()
            if left is not None and left <= 0:
                return None
            try:
                async with asyncio.timeout(left):
                    _ = await arrival.wait()
            except TimeoutError:
                return None
        return None

    async def interrupt(self) -> None:
        self._interrupted = True
        self.queue.pump()

    async def renew(self, claim: Claim, client: str = "") -> Renewed:
        reply = self._home(claim.job_id).renew(claim.job_id, claim.fence, claim.claim_id, self._now, client=client)
        if reply == ("lost",):
            raise ClaimLost(claim.job_id)
        return Renewed(cancel_requested=reply[1] == "1")

    async def report(self, claim: Claim, progress: Progress) -> None:
        if self._home(claim.job_id).report(claim.job_id, claim.fence, claim.claim_id, progress) == "lost":
            raise ClaimLost(claim.job_id)
        self.queue.pump()

    async def progress(self, record: JobRecord) -> Progress | None:
        fence, progress = self._home(record.id).state.progress.get(record.id, (0, None))
        return progress if fence == record.fence else None

    async def complete(self, claim: Claim, result: Result) -> Status:
        values = {
            "result_key": result.key,
            "result_size": str(result.size),
            "result_content_type": result.content_type,
            "result_sha256": result.sha256,
        }
        if result.http_status is not None:
            values["http_status"] = str(result.http_status)
        if result.tokens is not None:
            values["tokens_used"] = str(result.tokens)
        word = self._home(claim.job_id).complete(claim.job_id, claim.fence, claim.claim_id, self._now, values=values)
        return self._verdict(claim.job_id, word)

    async def complete_foreign(self, job_id: str, status: Status, *, result_key: str = "", error: str = "") -> Status:
        values = {"error_code": "inference_error", "error_message": error}
        if status == Status.COMPLETED:
            values = {"result_key": result_key}
        elif status == Status.CANCELLED:
            values = {"error_code": "cancelled"}
        word = self._home(job_id).complete(job_id, "", FOREIGN, self._now, status=status, values=values)
        return self._verdict(job_id, word)

    async def fail(self, claim: Claim, failure: Failure) -> Status:
        values = {"error_code": failure.code, "error_message": failure.message}
        if failure.http_status is not None:
            values["http_status"] = str(failure.http_status)
        word = self._home(claim.job_id).fail(
            claim.job_id,
            claim.fence,
            claim.claim_id,
            self._now,
            retry_in_ms=failure.retry_in_ms,
            breaker_failures=failure.breaker.failures if failure.infrastructure else 0,
            cooldown_ms=failure.breaker.cooldown_ms,
            values=values,
        )
        return self._verdict(claim.job_id, word)

    async def release(self, claim: Claim) -> Status:
        word = self._home(claim.job_id).release(claim.job_id, claim.fence, claim.claim_id, self._now)
        return self._verdict(claim.job_id, word)

    def _verdict(self, job_id: str, word: str) -> Status:
        self.queue.pump()
        if word == "lost":
            raise ClaimLost(job_id)
        return Status(word)

    # -- upkeep -------------------------------------------------------------------------------------------------

    def _next_held(self, verb: str, limit: int) -> list[str]:
        """A page of what is held, behind that of this verb's call before."""
        held, after = list(dict.fromkeys(self.specification.state.processing)), self._held_after.get(verb, 0)
        page = held[after : after + limit] or held[:limit]
        end = (after if held[after : after + limit] else 0) + limit
        self._held_after[verb] = end if len(page) == limit else 0
        return page

    async def reap(self, *, first_seen_grace_ms: int = 5_000, limit: int = 1_000) -> Sequence[Reaped]:
        now = self._now
        held = self._next_held("reap", limit)
        return self._reaped([(one, self.specification.reap(one, now, grace_ms=first_seen_grace_ms)) for one in held])

    async def owners(self, *, limit: int = 1_000) -> Sequence[OwnedClaim]:
        jobs = [self.specification.state.jobs.get(one) for one in self._next_held("owners", limit)]
        return [
            OwnedClaim(job.id, job.fence, job.claim_id, job.owner_client)
            for job in jobs
            if job is not None and job.status is Status.PROCESSING and job.owner_client
        ]

    async def reap_dead(self, owned: OwnedClaim, exit_cause: str) -> Reaped:
        word = self.specification.reap(
            owned.job_id,
            self._now,
            grace_ms=0,
            client=owned.client,
            fence=owned.fence,
            claim_id=owned.claim_id,
            cause=exit_cause,
        )
        return self._reaped([(owned.job_id, word)])[0]

    async def revoke(self, *, grace_ms: int, limit: int = 1_000) -> Sequence[str]:
        now = self._now
        held = self._next_held("revoke", limit)
        revoked = [one for one in held if self.specification.revoke(one, now, grace_ms=grace_ms) == "revoked"]
        self.queue.pump()
        return revoked

    async def expire(self, *, limit: int = 1_000) -> Sequence[str]:
        now = self._now
        due = list(self.specification.waiting_due(now))[:limit]
        expired = [one for one in due if self.specification.expire(one, now) == "expired"]
        self.queue.pump()
        return expired

    async def promote(self, *, limit: int = 1_000) -> int:
        count = self.specification.promote(self._now, limit)
        self.queue.pump()
        return count

    async def sweep(self, *, limit: int = 1_000) -> Sequence[tuple[str, str]]:
        _ = self._now
        entries = list(self.specification.entries())[:limit]
        return [(one, state) for one, state in entries if self.specification.sweep(one) == "swept"]

    async def reconcile(self, *, grace_ms: int = 30_000, limit: int = 1_000) -> Sequence[Reaped]:
        now = self._now
        looked = [
            (one, self.specification.reconcile(one, now, grace_ms=grace_ms))
            for one in list(self.specification.state.jobs)[:limit]
        ]
        return self._reaped([(one, word) for one, word in looked if word != "ok"])

    def _reaped(self, looked: Sequence[tuple[str, str]]) -> list[Reaped]:
        self.queue.pump()
        return [Reaped(job_id, cast("ReapOutcome", word)) for job_id, word in looked]

    # -- operators ----------------------------------------------------------------------------------------------

    async def counts(self) -> QueueCounts:
        now, state = self._now, self.specification.state
        waiting = [
            job.since for job in state.jobs.values() if job.status is Status.PENDING and job.id not in state.delayed
        ]
        unacknowledged = [*state.outbox, *self._unacknowledged.values()]
        return QueueCounts(
            pending=len(state.pending),
            processing=len(state.processing),
            delayed=len(state.delayed),
            paused=len(state.paused),
            ordered=sum(map(len, state.ordered.values())),
            deadletter=len(state.deadletter),
            outbox=len(unacknowledged),
            oldest_pending_ms=now - min(waiting) if waiting else None,
            paused_reason=state.pause_reason,
            paused_until=state.paused_until,
            duplicates=state.duplicates,
            gate_waits=state.gate_waits,
            gate_drops=state.gate_drops,
            gate_faults=state.gate_faults,
            oldest_outbox_ms=max((now - event.finished_at for event in unacknowledged), default=None),
        )

    async def pause(self, *, reason: str = "operator", cooldown_ms: int | None = None) -> None:
        self.specification.pause(reason, None if cooldown_ms is None else self._now + cooldown_ms)

    async def resume(self) -> None:
        self.specification.resume()
        self.queue.pump()

    async def purge(self, *, limit: int = 1_000) -> int:
        now, state = self._now, self.specification.state
        behind = [one for ids in state.ordered.values() for one in reversed(ids)]
        ids = list(dict.fromkeys([*behind, *reversed(state.pending), *state.paused, *state.delayed]))[:limit]
        count = sum(self.specification.purge(one, now) == "purged" for one in ids)
        self.queue.pump()
        return count

    async def deadletters(self, *, offset: int = 0, limit: int = 50) -> Sequence[JobRecord]:
        _, state = self._now, self.specification.state
        ids = state.deadletter[offset : offset + limit]
        return [record_of(self.model, state.jobs[one]) for one in ids if one in state.jobs]

    async def redrive(self, job_id: str, *, generation: int | None = None) -> None:
        if generation is None:
            generation = (await self.get(job_id)).generation
        reply = self._home(job_id).redrive(job_id, generation, self._now)
        self.queue.pump()
        match reply:
            case ("redriven",):
                return
            case ("over", status):
                raise WrongState(job_id, status)
            case _:
                _ = await self.get(job_id)
                raise JobNotFound(job_id)

    async def drop(self, job_id: str) -> bool:
        dead = self.specification.state.deadletter
        if job_id in dead:
            dead.remove(job_id)
            return True
        return False

    # -- verdicts -----------------------------------------------------------------------------------------------

    async def events(self, consumer: str, *, wait_seconds: float = 0, limit: int = 100) -> Sequence[OutboxEvent]:
        outbox: list[Event] = self.specification.state.outbox
        if not outbox and wait_seconds > 0:
            try:
                async with asyncio.timeout(wait_seconds):
                    while not outbox:
                        _ = await self.queue.arrival.wait()
            except TimeoutError:
                return []
        given = [
            OutboxEvent(event.event_id, *event[:4], record=event.told and record_of(self.model, event.told))
            for event in outbox[:limit]
        ]
        del outbox[:limit]
        self._unacknowledged |= {event.entry: event for event in given}
        return given

    async def acknowledge(self, entries: Sequence[str]) -> None:
        for entry in entries:
            _ = self._unacknowledged.pop(entry, None)


class MemorySignals(Signals):
    """Wake-ups of a ``MemoryQueue``."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def _listen(self, wanted: Callable[[str, str], bool], *greeting: str) -> AsyncIterator[str]:
        inbox: asyncio.Queue[str] = asyncio.Queue()
        for payload in greeting:  # given out once it listens, as after a real subscription
            inbox.put_nowait(payload)

        def hear(model: str, channel: str, payload: str) -> None:
            if wanted(model, channel):
                inbox.put_nowait(payload)

        self._queue.listeners.append(hear)
        try:
            while True:
                yield await inbox.get()
        finally:
            self._queue.listeners.remove(hear)

    async def changes(self) -> AsyncIterator[str]:
        async for payload in self._listen(lambda _, channel: channel in {"changed", "completed"}, ""):
            yield str(json.loads(payload)["job_id"]) if payload.startswith("{") else payload

    async def cancels(self, model: str, on_connected: Callable[[str], None]) -> AsyncIterator[str]:
        on_connected(f"{RUN_ID}:1")
        async for payload in self._listen(lambda of, channel: of == model and channel == "cancel"):
            yield str(json.loads(payload)["job_id"])

    async def completions(self, model: str) -> AsyncIterator[str]:
        async for payload in self._listen(lambda of, channel: of == model and channel == "completed"):
            yield payload


class MemoryReservations(Reservations):
    """Idempotency keys of a ``MemoryQueue``: (token, until ms) while held, (job id, fingerprint) once answered."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self.held: dict[Scope, tuple[str, int]] = {}
        self.answers: dict[Scope, Answered] = {}

    async def reserve(self, scope: Scope, token: str, *, life_ms: int = LIFE_MS) -> Reply:
        if answer := self.answer(scope):
            return answer
        if self.holder(scope) not in {"", token}:
            return Held()
        self.held[scope] = token, self._queue.clock() + life_ms
        return Reserved()

    async def free(self, scope: Scope, token: str) -> None:
        if self.holder(scope) == token:
            del self.held[scope]

    def holder(self, scope: Scope) -> str:
        """The token that has the key now; "" when none has."""
        token, until = self.held.get(scope, ("", 0))
        return token if until > self._queue.clock() else ""

    def answer(self, scope: Scope) -> Answered | None:
        """The job of this key, while there is its record."""
        found = self.answers.get(scope)
        if found and any(found.job_id in one.state.jobs for one in self._queue.specifications.values()):
            return found
        return None

    def settle(self, job_id: str, reservation: Reservation) -> None:
        """The key stands for this job from here on."""
        _ = self.held.pop(reservation.scope, None)
        self.answers[reservation.scope] = Answered(job_id, reservation.fingerprint)


class MemoryServer(Server):
    """Facts that tests set."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self._seen: dict[str, int] = {}
        self.known = ServerFacts(RUN_ID, "9.0.0", "noeviction", appendonly=True, appendfsync="always")
        self.clients: frozenset[str] | None = frozenset({f"{RUN_ID}:1"})

    async def ping(self) -> None:
        return

    async def now_ms(self) -> int:
        return self._queue.clock()

    async def facts(self) -> ServerFacts:
        return self.known

    async def living_clients(self, clients: Sequence[str]) -> frozenset[str] | None:
        return None if self.clients is None else self.clients & frozenset(clients)

    async def first_seen(self, keys: Sequence[str]) -> Mapping[str, int]:
        now = self._queue.clock()
        return {key: now - self._seen.setdefault(key, now) for key in keys}

    async def forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            _ = self._seen.pop(key, None)

    async def records(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        self._queue.pump()  # what is past its retention is gone
        found: dict[str, JobRecord | None] = dict.fromkeys(job_ids)
        for model, specification in self._queue.specifications.items():
            for job_id in job_ids:
                if job_id in specification.state.jobs:
                    found[job_id] = record_of(model, specification.state.jobs[job_id])
        return found


# Names of a Job that are no fields of a record, or are others there.
_OWN: Final = frozenset({
    "fields", "result", "returned", "return_to", "settled", "queued_at", "entered", "taken", "gate_wait", "reclaimed",
    "gate", "history",
})  # fmt: skip


def record_of(model: str, job: Job) -> JobRecord:
    """The typed record of a specification's job."""
    own = {
        name: str(int(value) if isinstance(value, bool) else value)
        for name, value in vars(job).items()
        if name not in _OWN and value not in {None, ""}
    }
    if job.history:
        own["history"] = msgspec.json.encode(job.history).decode()
    return record_from_fields(dict(job.fields) | own | dict(job.result) | {"model": model})


def _tombstone(model: str, job: Job) -> dict[str, str]:
    values = dict(job.fields)
    return {
        "status": job.status,
        "finished_at": str(job.finished_at),
        "expires_at": str(job.expires_at),
        "model": job.model or model,
        "service_type": values.get("service_type", ""),
        "tenant": values.get("tenant", ""),
        "pipeline": values.get("pipeline", ""),
    }
