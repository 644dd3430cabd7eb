"""What a queue is, executable: every verb as a pure step on a state that can be copied and compared.

The list transport's scripts do the same on Redis. The contract suite runs over both, a hypothesis machine compares
them step by step, and the exhaustive search explores all interleavings of this one (docs/architecture/03-proof.md).
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, NamedTuple

import msgspec

from queuecore.broker import FOREIGN, NewJob, Progress, QueueLimits
from queuecore.gates import NOTHING, Admit, Asking, Drop, Ledger, Taken, Wait, ask
from queuecore.job import TERMINAL, PastStage, Status, Step
from queuecore.scoring import rank_ms

RECLAIMED_RANK_MS: Final = rank_ms("critical")


@dataclass
class Job:
    """A record; names and meaning are those of ``JobRecord``."""

    id: str
    seq: int
    created_at: int
    fields: tuple[tuple[str, str], ...] = ()
    priority: str = "false"
    not_before: int | None = None
    deadline: int | None = None
    ordering_key: str = ""
    status: Status = Status.PENDING
    generation: int = 1
    fence: int = 0
    claim_id: str = ""
    owner: str = ""
    owner_client: str = ""
    started_at: int | None = None
    finished_at: int | None = None
    execute_until: int | None = None
    lease_until: int | None = None
    claims: int = 0
    reaps: int = 0
    failures: int = 0
    last_exit: str = ""
    returned: bool = False
    return_to: str = ""
    cancel_requested: bool = False
    settled: str = ""
    queued_at: int | None = None  # a retry or a redrive begins to wait anew
    item: str = ""  # what it has taken for a window of item_ms
    item_ms: int = 0
    cache_key: str = ""  # what its result answers
    waiting_since: int | None = None  # a redrive, or the next stage
    reclaimed: bool = False  # stages: at base priority 10, until it enters anew
    model: str = ""  # stages: where it stands, if it is a pipeline's run
    gate: str = ""  # the stage that keeps its ordering key; "" is this one
    history: tuple[PastStage, ...] = ()
    entered: int = 0  # streams: the number of its entry
    retain_until: int | None = None
    tombstone_until: int | None = None
    queue_wait_ms: int | None = None
    processing_ms: int | None = None
    expires_at: int | None = None
    taken: Taken = NOTHING  # from gates, by the current claim
    gate_wait: str = ""  # where it waits for its turn
    result: tuple[tuple[str, str], ...] = ()  # error and result fields of the verdict

    @property
    def tenant(self) -> str:
        return dict(self.fields).get("tenant", "")

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def since(self) -> int:
        return self.created_at if self.waiting_since is None else self.waiting_since

    @property
    def plan(self) -> tuple[Step, ...]:
        return msgspec.json.decode(dict(self.fields).get("plan", "[]"), type=tuple[Step, ...])

    @property
    def next_step(self) -> Step | None:
        """What a pipeline's run does after the stage where it stands."""
        stages = [step.stage for step in self.plan]
        after = stages.index(self.model) + 1 if self.model in stages else len(stages)
        return self.plan[after] if after < len(stages) else None


class Event(NamedTuple):
    """One outbox entry."""

    event_id: str
    job_id: str
    status: Status
    finished_at: int
    told: Job | None = None  # as it is now, of a client that asked to be told


@dataclass
class State:
    """One queue. Lists are in pop order."""

    jobs: dict[str, Job] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    processing: list[str] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    delayed: dict[str, int] = field(default_factory=dict)
    ordered: dict[str, list[str]] = field(default_factory=dict)
    ordering: dict[str, str] = field(default_factory=dict)
    deadletter: list[str] = field(default_factory=list)
    outbox: list[Event] = field(default_factory=list)
    foreign_leases: dict[str, int] = field(default_factory=dict)  # id -> until
    first_seen: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    seq: int = 0
    pause_reason: str = ""
    paused_until: int | None = None
    breaker: int = 0
    duplicates: int = 0
    gate_waits: int = 0
    gate_drops: int = 0
    gate_faults: int = 0
    ledger: Ledger = field(default_factory=Ledger)  # queues of one provider share it
    entries: int = 0
    tags: dict[str, int] = field(default_factory=dict)  # tenant -> tag, of tenants that have something to run
    reusable: dict[str, str] = field(default_factory=dict)  # cache key -> the job that answers such requests
    seen: dict[str, tuple[int, str]] = field(default_factory=dict)  # item -> (until, the job that took it)
    idle_tags: dict[str, int] = field(default_factory=dict)  # of others, while it is ahead of ``served``
    served: int = 0
    progress: dict[str, tuple[int, Progress]] = field(default_factory=dict)  # id -> (fence, the newest word)
    changes: list[tuple[str, str]] = field(default_factory=list)  # (channel, id) since last taken

    def copy(self) -> State:
        """An independent copy."""
        made = State()
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "jobs":
                value = {key: replace(job) for key, job in self.jobs.items()}
            elif one.name == "ordered":
                value = {key: list(ids) for key, ids in self.ordered.items()}
            elif isinstance(value, list | dict | Ledger):
                value = value.copy()
            setattr(made, one.name, value)
        return made


class Specification:
    """The verbs. Each takes the server's ``now`` in ms and answers the words of the script of its name."""

    def __init__(
        self, limits: QueueLimits, state: State | None = None, *, peers: Mapping[str, Specification] | None = None
    ) -> None:
        self.limits = limits
        self.state = state or State()
        self.refusal: Wait | None = None  # of the claim that answered "waiting" last
        self.peers: Mapping[str, Specification] = {} if peers is None else peers  # the other stages of a pipeline

    def _gate(self, job: Job) -> State:
        """Where its ordering key is kept: a run's first stage."""
        return self.peers[job.gate].state if job.gate else self.state

    # -- where a job stands -------------------------------------------------------------------------------------

    @property
    def _waiting_list(self) -> list[str]:
        return self.state.paused if self.state.pause_reason else self.state.pending

    def lease_is_live(self, job: Job, now: int) -> bool:
        """Our own claims are judged by the record; a foreign relay's by its lease key."""
        if job.status is Status.PROCESSING and (job.lease_until or 0) > now:
            return True
        return self.state.foreign_leases.get(job.id, 0) > now

    def lease_end(self, job: Job, now: int, *, renewing: bool) -> int:
        """Until when a lease granted now lasts; on sorted sets not past the deadline by more than 30 s."""
        ends = now + self.limits.lease_ms
        if self.limits.order in {"deadline", "priority"} and job.deadline is not None and job.deadline + 30_000 < ends:
            return max(job.deadline + 30_000, min(now + 45_000, ends) if renewing else 0)
        return ends

    def leave(self, job_id: str, job: Job | None) -> None:
        """Out of every structure."""
        state = self.state
        for one in (state.pending, state.paused, state.processing):
            one[:] = [other for other in one if other != job_id]
        self.note_turns(job)
        for register in (state.delayed, state.first_seen, state.missing, state.foreign_leases):
            _ = register.pop(job_id, None)
        gate = self._gate(job) if job is not None else state
        if job is not None and job.ordering_key in gate.ordered:
            kept = [other for other in gate.ordered[job.ordering_key] if other != job_id]
            self._set_ordered(gate, job.ordering_key, kept)

    def row(self, tenant: str) -> list[str]:
        """What of this tenant could run now or is paused, in its order."""
        state = self.state
        waiting = [*state.pending, *state.paused]
        return [one for one in waiting if one in state.jobs and state.jobs[one].tenant == tenant]

    def take_item(self, job: Job, now: int) -> None:
        """Nobody else may take it until its window is over, unless by force."""
        self.state.seen = {item: one for item, one in self.state.seen.items() if one[0] > now}
        self.state.seen[job.item] = now + job.item_ms, job.id

    def note_turns(self, job: Job | None) -> None:
        """Its tenant has something to run now, or no more: a tenant that comes back has saved nothing up (ADR 0008)."""
        if job is None or not self.limits.fair_share:
            return
        state, tenant = self.state, job.tenant
        if self.row(tenant):
            if tenant not in state.tags:
                state.tags[tenant] = max(state.idle_tags.pop(tenant, 0), state.served)
        elif tenant in state.tags:
            tag = state.tags.pop(tenant)
            if tag > state.served:
                state.idle_tags[tenant] = tag

    def charge(self, job: Job) -> None:
        """Its tenant was served."""
        state, tenant = self.state, job.tenant
        if self.limits.fair_share:
            where = state.tags if tenant in state.tags else state.idle_tags
            state.served = max(where.get(tenant, 0), state.served)
            where[tenant] = state.served + 1
            state.idle_tags = {one: tag for one, tag in state.idle_tags.items() if tag > state.served}

    @staticmethod
    def _set_ordered(gate: State, key: str, ids: list[str]) -> None:
        if ids:
            gate.ordered[key] = ids
        else:
            _ = gate.ordered.pop(key, None)

    def rank(self, job_id: str) -> tuple[int, int, int, str]:
        """Where a sorted set or a stream puts it: lower is sooner."""
        job, order = self.state.jobs[job_id], self.limits.order
        if order == "lanes":
            return int(job.priority != "high"), int(not job.returned), job.entered, ""
        since = job.created_at if job.queued_at is None else job.queued_at
        if order in {"priority", "stage"}:
            base = rank_ms(job.priority, dict(job.fields).get("content_class", ""))
            return (min(base, RECLAIMED_RANK_MS) if job.reclaimed else base) + since, 0, 0, job_id
        return since + self.limits.pending_max_age_ms if job.deadline is None else job.deadline, 0, 0, job_id

    def _number_anew(self, job_ids: Iterable[str]) -> None:
        """A stream gives them new entries, in this order."""
        for job in (self.state.jobs[one] for one in job_ids if one in self.state.jobs):
            self.state.entries += 1
            job.entered = self.state.entries

    def _insert(self, job: Job) -> None:
        waiting = self._waiting_list
        known = [one for one in waiting if one in self.state.jobs]
        at = bisect.bisect(known, self.rank(job.id), key=self.rank)
        waiting.insert(waiting.index(known[at]) if at < len(known) else len(waiting), job.id)
        self.note_turns(job)

    def enter(self, job: Job, *, at_tail: bool = False) -> None:
        """Among those that wait: priority at the head, unless it comes back from a retry; or by rank."""
        job.reclaimed = False
        if self.limits.order != "arrival":
            self.state.entries += 1
            job.entered = self.state.entries
            self._insert(job)
        elif job.priority == "true" and not at_tail:
            self._waiting_list.insert(0, job.id)
        else:
            self._waiting_list.append(job.id)

    def put_back(self, job: Job, *, kept: bool = False) -> None:
        """To the head, behind those that came back before and are older (G5); or by rank."""
        if self.limits.order == "lanes" and not kept:  # its entry was lost, and its place with it
            job.returned = False
            self.enter(job)
            return
        if self.limits.order != "arrival":
            job.returned = True
            self._insert(job)
            return
        waiting, at = self._waiting_list, 0
        while at < len(waiting):
            other = self.state.jobs.get(waiting[at])
            if other is None or not other.returned or other.seq > job.seq:
                break
            at += 1
        waiting.insert(at, job.id)
        job.returned = True

    def admit(self, job: Job, now: int) -> None:
        """A job that stands nowhere enters the queue, or waits until it is due."""
        if (job.not_before or 0) > now:
            self.state.delayed[job.id] = job.not_before or 0
            job.return_to = "entry"
        else:
            self.enter(job)

    def admit_in_order(self, job: Job, now: int) -> None:
        """The same behind the gate of its ordering key."""
        state, key = self._gate(job), job.ordering_key
        if key:
            if state.ordering.get(key, job.id) != job.id:
                state.ordered.setdefault(key, []).append(job.id)
                return
            state.ordering[key] = job.id
        self.admit(job, now)

    def let_next_in(self, job: Job, now: int) -> None:
        """The key's next job, once this one reached its verdict."""
        state, key = self._gate(job), job.ordering_key
        if not key or state.ordering.get(key) != job.id:
            return
        del state.ordering[key]
        while key in state.ordered:
            after = state.ordered[key][0]
            self._set_ordered(state, key, state.ordered[key][1:])
            home = next((one for one in (self, *self.peers.values()) if after in one.state.jobs), self)
            follower = home.state.jobs.get(after)
            if follower is not None and follower.status is Status.PENDING:
                state.ordering[key] = after
                home.admit(follower, now)
                return

    def await_again(self, job: Job) -> None:
        """No longer claimed; fence and claim_id stay, so that valid work can still complete (G4)."""
        job.status = Status.PENDING
        job.lease_until = job.execute_until = job.started_at = None
        job.owner = job.owner_client = ""

    def requeue(self, job: Job, now: int, *, reclaimed: bool = False) -> None:
        """Back where it was; on stages, what a dead worker left goes ahead. Its slots are free by then."""
        self.free_slots(job, now)
        kept = job.id in self.state.processing  # a stream keeps its entry
        self.leave(job.id, job)
        self.await_again(job)
        job.reclaimed |= reclaimed and self.limits.order == "stage"
        self.put_back(job, kept=kept)
        self.changed(job.id)

    def free_slots(self, job: Job, now: int) -> None:
        """What its claim held comes back, and whoever has waited longest for it comes next."""
        ledger = self.state.ledger
        for key in job.taken.slots:
            ledger.free(key, f"{job.id}:{job.fence}", now)
        self.wake(now)
        if job.gate_wait:
            _ = ledger.waiting.get(job.gate_wait, {}).pop(job.id, None)
        job.taken, job.gate_wait = NOTHING, ""

    def wake(self, now: int) -> None:
        """Waiters of this queue whose turn has come are due."""
        mine = [one for one in self.state.ledger.woken if one in self.state.jobs]
        for job_id in mine:
            self.state.ledger.woken.remove(job_id)
            if job_id in self.state.delayed:
                self.state.delayed[job_id] = now

    def changed(self, job_id: str) -> None:
        """A wake-up for watchers."""
        self.state.changes.append(("changed", job_id))

    def verdict(
        self,
        job: Job,
        status: Status,
        now: int,
        values: Mapping[str, str] | None = None,
        *,
        settled: str = "",
        dead: bool = False,
    ) -> None:
        """The end of a job, in one step (G3, G9)."""
        was_processing = job.status is Status.PROCESSING
        self.free_slots(job, now)
        self.leave(job.id, job)
        retention = self.limits.retention
        retain = retention.deadletter_ms if dead else retention.result_ms
        if was_processing and job.started_at is not None:
            job.processing_ms = now - job.started_at
        job.status, job.finished_at, job.expires_at = status, now, now + retain
        job.lease_until, job.returned, job.return_to = None, False, ""
        job.retain_until, job.tombstone_until = now + retain, now + retain + retention.tombstone_ms
        job.settled = settled or job.settled
        # A verdict says its own cause: the message of a failure that was retried is not this one's.
        self._note(job, {"error_message": "", **values} if values and "error_code" in values else values or {})
        if status is not Status.COMPLETED and self.state.seen.get(job.item, (0, ""))[1] == job.id:
            del self.state.seen[job.item]
        if status is not Status.COMPLETED and self.state.reusable.get(job.cache_key) == job.id:
            del self.state.reusable[job.cache_key]
        told = replace(job) if dict(job.fields).get("callback_url") else None
        self.state.outbox.append(Event(f"{job.id}:{job.generation}", job.id, status, now, told))
        self.let_next_in(job, now)
        self.state.changes.append(("completed", job.id))

    @staticmethod
    def _note(job: Job, values: Mapping[str, str]) -> None:
        job.result = tuple(sorted((dict(job.result) | dict(values)).items()))

    def end_dead_claim(self, job: Job, cause: str, now: int, *, keep_place: bool = False) -> str:
        """A claim whose owner is held dead: cancelled, dead letter, or pending again and counted (G6)."""
        if job.cancel_requested:
            job.last_exit = cause
            self.verdict(job, Status.CANCELLED, now, {"error_code": "cancelled"})
            return "cancelled"
        if job.reaps + 1 > self.limits.max_reap_attempts:
            job.reaps, job.last_exit = job.reaps + 1, cause
            self.verdict(job, Status.FAILED, now, {"error_code": "worker_lost"}, dead=True)
            self.state.deadletter.append(job.id)
            return "deadletter"
        job.reaps, job.last_exit = job.reaps + 1, cause
        if keep_place:
            self.free_slots(job, now)
        else:
            self.requeue(job, now, reclaimed=True)
        return "requeued"

    def fail_for_good(self, job: Job, now: int, values: Mapping[str, str] | None = None, *, settled: str = "") -> None:
        """The verdict failed; a pipeline's run becomes a dead letter, to be resumed at this stage."""
        self.verdict(job, Status.FAILED, now, values, settled=settled, dead=bool(job.plan))
        if job.plan:
            self.state.deadletter.append(job.id)

    def advance(self, job: Job, step: Step, values: Mapping[str, str], now: int, *, claim: str) -> None:
        """Out of this stage and into the next, its counters fresh, its input what this one produced."""
        after = self.peers[step.stage]
        self.free_slots(job, now)
        self.leave(job.id, job)
        del self.state.jobs[job.id]
        past = PastStage(
            job.model,
            job.since,
            job.started_at or 0,
            now,
            job.claims,
            job.reaps,
            job.failures,
            values["result_key"],
            int(values["result_size"]),
            claim,
        )
        after.state.seq += 1
        changed = {
            "stage": step.stage,
            "operation": step.operation,
            "request": step.request,
            "inference_url": step.url,
            "input_key": values["result_key"],
            "input_size": values["result_size"],
            "input_sha256": values["result_sha256"],
            "input_content_type": values["result_content_type"],
        }
        fields = {name: value for name, value in (dict(job.fields) | changed).items() if value}
        moved = Job(
            job.id,
            after.state.seq,
            job.created_at,
            tuple(sorted(fields.items())),
            job.priority,
            job.not_before,
            job.deadline,
            job.ordering_key,
            generation=job.generation,
            fence=job.fence,
            queued_at=now,
            waiting_since=now,
            model=step.stage,
            gate=job.gate or job.model,
            item=job.item,
            item_ms=job.item_ms,
            history=(*job.history, past),
        )
        after.state.jobs[job.id] = moved
        after.enter(moved)
        after.changed(job.id)

    @staticmethod
    def _owns(job: Job, fence: int, claim_id: str) -> bool:
        return claim_id != "" and (job.fence, job.claim_id) == (fence, claim_id)

    @staticmethod
    def _settled_word(job: Job, verb: str, fence: int | str, claim_id: str) -> str | None:
        prefix = f"{verb}:{fence}:{claim_id}:"
        return job.settled.removeprefix(prefix) if job.settled.startswith(prefix) else None

    # -- the verbs ----------------------------------------------------------------------------------------------

    def submit(self, new: NewJob, now: int) -> tuple[str, ...]:
        state = self.state
        for one in (self, *self.peers.values()):
            if new.id in one.state.jobs:
                return "exists", one.state.jobs[new.id].status
        item = new.dedup.key and f"{new.fields.get('tenant', '')} {new.dedup.key}" if new.dedup else ""
        if new.dedup and not new.dedup.force:
            until, first = state.seen.get(item, (0, ""))
            if until > now:
                return "duplicate", first
        if new.reuse and not new.reuse.fresh:
            other = state.jobs.get(state.reusable.get(new.reuse.key, ""))
            if other and not other.cancel_requested and not (
                other.finished_at is not None and other.finished_at + new.reuse.keep_ms <= now
            ):  # fmt: skip
                return "cached", other.id
        waiting = len(state.pending) + len(state.paused) + len(state.delayed) + sum(map(len, state.ordered.values()))
        if waiting >= self.limits.max_pending:
            return ("full",)
        caps = [one for one in (self.limits.max_pending_per_tenant, new.tenant_cap) if one is not None]
        tenant = new.fields.get("tenant", "")
        if caps and self.pending_of(tenant) >= min(caps):
            return ("tenant_full",)
        state.seq += 1
        job = Job(
            new.id,
            state.seq,
            now,
            tuple(sorted((name, value) for name, value in new.fields.items() if value)),
            new.priority,
            new.not_before,
            new.deadline,
            new.ordering_key,
            model=new.fields.get("stage", ""),
        )
        if new.dedup:
            job.item, job.item_ms = item, new.dedup.window_ms
            self.take_item(job, now)
        if new.reuse:
            job.cache_key = new.reuse.key
            state.reusable[new.reuse.key] = new.id
        state.jobs[new.id] = job
        self.admit_in_order(job, now)
        return "created", Status.PENDING

    def pending_of(self, tenant: str) -> int:
        """Jobs of this tenant that have no verdict and no owner, wherever they wait."""
        return sum(job.status is Status.PENDING and job.tenant == tenant for job in self.state.jobs.values())

    @property
    def peeks(self) -> bool:
        """Whether a worker only looks at the head, and its claim moves the entry; a list's pop moves it before."""
        return self.limits.order != "arrival"

    def peek(self, passed: Collection[str] = ()) -> str | None:
        """The entry whose turn it is, those ``passed`` left out; it stays there."""
        pending = [one for one in self.state.pending if one not in passed]
        tags = self.state.tags
        for tenant in sorted(tags, key=lambda one: (tags[one], one.encode())):
            for one in self.row(tenant):
                if one in pending:
                    return one
        return pending[0] if pending else None

    def hold(self, job_id: str) -> bool:
        """Out of pending and into processing, if it stands there."""
        offered = job_id in self.state.pending
        if offered:
            self.state.pending.remove(job_id)
            self.state.processing.append(job_id)
            self.note_turns(self.state.jobs.get(job_id))
        return offered

    def move_back(self) -> None:
        """An operator undoes the claim taken last."""
        job_id = self.state.processing.pop()
        self.state.pending.insert(0, job_id)
        if self.peeks:  # the lease is part of the claim that is undone
            _ = self.state.foreign_leases.pop(job_id, None)
            if job_id in self.state.jobs:
                self.state.jobs[job_id].returned = True  # a stream has the consumer "released" for it
                self.state.pending.sort(key=self.rank)

    def pop(self) -> str | None:
        """BLMOVE: the entry at the head moves to processing."""
        if not self.state.pending:
            return None
        job_id = self.state.pending.pop(0)
        self.state.processing.append(job_id)
        return job_id

    def claim(
        self, job_id: str, claim_id: str, now: int, *, owner: str = "", client: str = "", execution_ms: int = 3_600_000
    ) -> str:
        job, state = self.state.jobs.get(job_id), self.state
        if job is None or job.terminal:
            self.leave(job_id, job)
            return "dropped"
        if job.status is Status.PROCESSING and job.claim_id == claim_id:
            if self.peeks:
                _ = self.hold(job_id)
            job.lease_until = self.lease_end(job, now, renewing=True)
            self.keep_slots(job)
            _ = state.first_seen.pop(job_id, None)
            return "claimed"
        if not (self.hold(job_id) if self.peeks else job_id in state.processing):
            return "moved"
        if self.lease_is_live(job, now):
            return "held"
        if job.cancel_requested:
            self.verdict(job, Status.CANCELLED, now, {"error_code": "cancelled"})
            return "cancelled"
        if job.status is Status.PROCESSING:
            ended = self.end_dead_claim(job, "lease lapsed", now, keep_place=True)
            if ended != "requeued":
                return ended
        if job.deadline is not None and job.deadline <= now:
            self.verdict(job, Status.EXPIRED, now, {"error_code": "deadline_exceeded"})
            return "expired"
        refused = self._refused(job, now)
        if refused:
            return refused
        self.charge(job)
        job.claims += 1
        job.fence += 1
        ends = self.lease_end(job, now, renewing=False)
        if self.limits.gate:
            holder = f"{job.id}:{job.fence}"
            job.taken = self.limits.gate.take(state.ledger, self._asking(job, now), holder, ends)
        job.gate_wait = ""
        job.status, job.claim_id, job.owner, job.owner_client = Status.PROCESSING, claim_id, owner, client
        job.started_at, job.lease_until = now, ends
        job.execute_until = min(now + execution_ms, now + execution_ms if job.deadline is None else job.deadline)
        if job.claims == 1:
            job.queue_wait_ms = now - max(job.since, job.not_before or 0)
        job.returned, job.return_to = False, ""
        for register in (state.first_seen, state.missing, state.foreign_leases):
            _ = register.pop(job_id, None)
        self.changed(job_id)
        return "claimed"

    @staticmethod
    def _asking(job: Job, now: int) -> Asking:
        tokens = dict(job.fields).get("tokens_estimate")
        return Asking(job.id, now, None if tokens is None else int(tokens), job.priority == "true")

    def _refused(self, job: Job, now: int) -> str:
        """What the claim answers where its gate does not admit it: "waiting", "gate_dropped" or ""."""
        state = self.state
        said = ask(self.limits.gate, state.ledger, self._asking(job, now)) if self.limits.gate else Admit()
        if isinstance(said, Drop):
            state.gate_drops += 1
            self.verdict(job, Status.FAILED, now, {"error_code": "gate_dropped"})
            return "gate_dropped"
        if isinstance(said, Admit):
            return ""
        self.refusal = said
        if said.fault:
            state.gate_faults += 1
        else:
            state.gate_waits += 1
        if job.status is Status.PROCESSING:
            self.await_again(job)
        self.leave(job.id, job)
        if self.peeks:  # it stands where it stood; on a stream the consumer "released" has it
            job.returned = job.returned or self.limits.order == "lanes"
            self._insert(job)
            return "waiting"
        state.delayed[job.id], job.return_to = said.until_ms, "entry" if job.priority == "true" else "back"
        if job.gate_wait not in {"", said.waiting_key}:
            _ = state.ledger.waiting.get(job.gate_wait, {}).pop(job.id, None)
            job.gate_wait = ""
        if said.waiting_key:
            state.ledger.waiting.setdefault(said.waiting_key, {})[job.id] = said.until_ms
            job.gate_wait = said.waiting_key
        return "waiting"

    def keep_slots(self, job: Job) -> None:
        """Renewed with the claim's lease."""
        for key in job.taken.slots:
            self.state.ledger.slots.setdefault(key, {})[f"{job.id}:{job.fence}"] = job.lease_until or 0

    def renew(self, job_id: str, fence: int, claim_id: str, now: int, *, client: str = "") -> tuple[str, ...]:
        job = self.state.jobs.get(job_id)
        if job is None or job.status is not Status.PROCESSING or not self._owns(job, fence, claim_id):
            return ("lost",)
        job.lease_until = self.lease_end(job, now, renewing=True)
        self.keep_slots(job)
        job.owner_client = client or job.owner_client
        for register in (self.state.first_seen, self.state.foreign_leases):
            _ = register.pop(job_id, None)
        return "renewed", "1" if job.cancel_requested else "0"

    def report(self, job_id: str, fence: int, claim_id: str, progress: Progress) -> str:
        job = self.state.jobs.get(job_id)
        if job is None or job.status is not Status.PROCESSING or not self._owns(job, fence, claim_id):
            return "lost"
        self.state.progress[job_id] = fence, progress
        self.changed(job_id)
        return "reported"

    def complete(
        self,
        job_id: str,
        fence: int | str,
        claim_id: str,
        now: int,
        *,
        status: Status = Status.COMPLETED,
        values: Mapping[str, str] | None = None,
    ) -> str:
        job = self.state.jobs.get(job_id)
        if job is None:
            return "lost"
        word = self._settled_word(job, "complete", fence, claim_id)
        if word is not None:
            return word
        if f"{fence}:{claim_id}" in {past.claim for past in job.history}:
            return "pending"
        if claim_id == FOREIGN:
            if (job.status is Status.PROCESSING and job.claim_id != FOREIGN) or job.next_step:
                return "lost"
        elif not job.terminal and not self._owns(job, int(fence), claim_id):
            return "lost"
        if job.terminal:
            self.state.duplicates += 1
            return "lost"
        if job.cancel_requested:
            status, values = Status.CANCELLED, {"error_code": "cancelled"}
        elif values and "tokens_used" in values:
            for spent in job.taken.spent:
                self.state.ledger.correct(spent, int(values["tokens_used"]), now)
        self.state.breaker = 0
        if status is Status.COMPLETED and job.next_step:
            self.advance(job, job.next_step, values or {}, now, claim=f"{fence}:{claim_id}")
            return "pending"
        self.verdict(job, status, now, values, settled=f"complete:{fence}:{claim_id}:{status}")
        return status

    def fail(
        self,
        job_id: str,
        fence: int,
        claim_id: str,
        now: int,
        *,
        retry_in_ms: int | None = None,
        breaker_failures: int = 0,
        cooldown_ms: int = 60_000,
        values: Mapping[str, str] | None = None,
    ) -> str:
        job = self.state.jobs.get(job_id)
        if job is None:
            return "lost"
        word = self._settled_word(job, "fail", fence, claim_id)
        if word is not None:
            return word
        if job.status is not Status.PROCESSING or not self._owns(job, fence, claim_id):
            return "lost"
        job.failures += 1
        self.state.breaker = self.state.breaker + 1 if breaker_failures else 0
        if breaker_failures and self.state.breaker >= breaker_failures:
            self.pause("breaker", now + cooldown_ms)
        settled = f"fail:{fence}:{claim_id}:"
        if job.cancel_requested:
            self.verdict(job, Status.CANCELLED, now, {"error_code": "cancelled"}, settled=settled + "cancelled")
            return "cancelled"
        if retry_in_ms is not None and not (job.deadline is not None and job.deadline <= now + retry_in_ms):
            self.free_slots(job, now)
            self.leave(job_id, job)
            self.await_again(job)
            job.settled, job.return_to = settled + "pending", "tail"
            self._note(job, values or {})
            self.state.delayed[job_id] = now + retry_in_ms
            self.changed(job_id)
            return "pending"
        self.fail_for_good(job, now, values, settled=settled + "failed")
        return "failed"

    def release(self, job_id: str, fence: int | str, claim_id: str, now: int) -> str:
        job = self.state.jobs.get(job_id)
        if job is None:
            return "lost"
        if claim_id == "":
            if job.status is not Status.PENDING or job_id not in self.state.processing or self.lease_is_live(job, now):
                return "lost"
        else:
            word = self._settled_word(job, "release", fence, claim_id)
            if word is not None:
                return word
            if job.status is not Status.PROCESSING or not self._owns(job, int(fence), claim_id):
                return "lost"
        settled = f"release:{fence}:{claim_id}:"
        if job.cancel_requested:
            self.verdict(job, Status.CANCELLED, now, {"error_code": "cancelled"}, settled=settled + "cancelled")
            return "cancelled"
        if claim_id:
            job.settled = settled + "pending"
        self.requeue(job, now)
        return "pending"

    def cancel(self, job_id: str, now: int) -> tuple[str, ...]:
        job = self.state.jobs.get(job_id)
        if job is None:
            return ("missing",)
        if job.status is Status.CANCELLED:
            return "cancelled", "before"
        if job.terminal:
            return "over", job.status
        if job.status is Status.PROCESSING:
            if not job.cancel_requested:
                self.changed(job_id)
            job.cancel_requested = True
            self.state.changes.append(("cancel", job_id))
            return ("processing",)
        self.verdict(job, Status.CANCELLED, now, {"error_code": "cancelled"})
        return "cancelled", "now"

    def purge(self, job_id: str, now: int) -> str:
        job = self.state.jobs.get(job_id)
        if job is None or job.status is not Status.PENDING:
            return "kept"
        self.verdict(job, Status.CANCELLED, now, {"error_code": "purged"})
        return "purged"

    def expire(self, job_id: str, now: int) -> str:
        job = self.state.jobs.get(job_id)
        if job is None or job.status is not Status.PENDING:
            return "kept" if job else "gone"
        late = job.deadline is not None and job.deadline <= now
        too_old = job.since + self.limits.pending_max_age_ms <= now
        if not (late or too_old) or self.lease_is_live(job, now):
            return "kept"
        self.verdict(job, Status.EXPIRED, now, {"error_code": "deadline_exceeded" if late else "pending_too_long"})
        return "expired"

    def reap(
        self,
        job_id: str,
        now: int,
        *,
        grace_ms: int = 5_000,
        client: str = "",
        fence: int = 0,
        claim_id: str = "",
        cause: str = "lease lapsed",
    ) -> str:
        job, state = self.state.jobs.get(job_id), self.state
        held = job_id in state.processing
        if client and (
            not held
            or job is None
            or job.status is not Status.PROCESSING
            or job.owner_client != client
            or not self._owns(job, fence, claim_id)
        ):
            return "live" if held else "skipped"
        if not held:
            _ = state.first_seen.pop(job_id, None)
            return "skipped"
        if job is None or job.terminal:
            self.leave(job_id, job)
            return "dropped"
        if not client and self.lease_is_live(job, now):
            _ = state.first_seen.pop(job_id, None)
            if job.status is not Status.PENDING:
                return "live"
            job.status, job.claim_id, job.owner, job.started_at = Status.PROCESSING, FOREIGN, FOREIGN, now
            job.fence += 1
            job.claims += 1
            self.changed(job_id)
            return "adopted"
        unclaimed = job.status is Status.PENDING or job.claim_id == FOREIGN
        if unclaimed and now - state.first_seen.setdefault(job_id, now) < grace_ms:
            return "waiting"
        if job.status is Status.PENDING:
            self.requeue(job, now)
            return "requeued"
        return self.end_dead_claim(job, cause, now)

    def revoke(self, job_id: str, now: int, *, grace_ms: int) -> str:
        job = self.state.jobs.get(job_id)
        if (
            job is None
            or job.status is not Status.PROCESSING
            or job.execute_until is None
            or job.execute_until + grace_ms > now
        ):
            return "kept"
        self.free_slots(job, now)  # they are held under the fence that ends here
        job.fence += 1
        if job.cancel_requested:
            self.verdict(job, Status.CANCELLED, now, {"error_code": "cancelled"})
        else:
            self.fail_for_good(job, now, {"error_code": "execution_timeout"})
        self.state.changes.append(("cancel", job_id))
        return "revoked"

    def promote(self, now: int, limit: int = 1_000) -> int:
        state, count = self.state, 0
        due = sorted((at, job_id) for job_id, at in state.delayed.items() if at <= now)[:limit]
        if state.paused_until is not None and state.paused_until <= now:
            self.resume()
        for _, job_id in due:
            del state.delayed[job_id]
            job = state.jobs.get(job_id)
            if job is None or job.status is not Status.PENDING:
                continue
            if job.return_to == "back":
                self.put_back(job)
            else:
                if job.return_to == "tail":
                    state.seq += 1
                    job.seq, job.queued_at = state.seq, now
                self.enter(job, at_tail=job.return_to == "tail")
            job.return_to = ""
            self.changed(job_id)
            count += 1
        return count

    def redrive(self, job_id: str, generation: int, now: int) -> tuple[str, ...]:
        job, state = self.state.jobs.get(job_id), self.state
        if job is None:
            return ("missing",)
        if job.generation == generation + 1:
            return ("redriven",)
        if job.generation != generation or job.status is not Status.FAILED or job_id not in state.deadletter:
            return "over", job.status
        state.deadletter.remove(job_id)
        state.seq += 1
        state.jobs[job_id] = job = Job(
            job_id,
            state.seq,
            job.created_at,
            job.fields,
            job.priority,
            None,
            job.deadline,
            job.ordering_key,
            generation=generation + 1,
            fence=job.fence + 1,
            last_exit=job.last_exit,
            queue_wait_ms=job.queue_wait_ms,
            queued_at=now,
            item=job.item,
            item_ms=job.item_ms,
            waiting_since=now,
            model=job.model,
            gate=job.gate,
            history=job.history,
        )
        if job.item and job.item not in state.seen:
            self.take_item(job, now)
        self.admit_in_order(job, now)
        self.changed(job_id)
        return ("redriven",)

    def sweep(self, job_id: str) -> str:
        job = self.state.jobs.get(job_id)
        if job is not None and not job.terminal:
            return "kept"
        self.leave(job_id, job)
        return "swept"

    def reconcile(self, job_id: str, now: int, *, grace_ms: int = 30_000) -> str:
        job, state = self.state.jobs.get(job_id), self.state
        gate = self._gate(job) if job else state
        holder = gate.ordering.get(job.ordering_key) if job else None
        queued_behind = (
            job is not None and holder not in {None, job_id} and job_id in gate.ordered.get(job.ordering_key, [])
        )
        everywhere = [one.state.jobs for one in (self, *self.peers.values())] if holder and queued_behind else []
        first = next((jobs[holder] for jobs in everywhere if holder in jobs), None)
        standing = [*state.processing, *state.pending, *state.paused, *state.delayed]
        if job is None or job.terminal or job_id in standing or (first is not None and not first.terminal):
            _ = state.missing.pop(job_id, None)
            return "ok"
        if self.lease_is_live(job, now):
            return "live"
        if now - state.missing.setdefault(job_id, now) < grace_ms:
            return "waiting"
        if job.status is Status.PROCESSING:
            return self.end_dead_claim(job, "lost from the queue", now)
        self.leave(job_id, job)
        if holder not in {None, job_id} and not queued_behind:
            self.admit_in_order(job, now)
        else:
            if job.ordering_key:
                gate.ordering[job.ordering_key] = job_id
            self.put_back(job)
        self.changed(job_id)
        return "requeued"

    def pause(self, reason: str, until: int | None) -> None:
        state = self.state
        if reason == "breaker":
            state.breaker = 0
        if state.pause_reason == "operator" and reason != "operator":
            return
        state.pause_reason, state.paused_until = reason, until
        if self.limits.order == "arrival":
            state.paused[:] = [*state.pending, *state.paused]
        else:
            state.paused[:] = sorted([*state.pending, *state.paused], key=self.rank)
        state.pending.clear()

    def resume(self) -> None:
        state = self.state
        state.pause_reason, state.paused_until, state.breaker = "", None, 0
        if self.limits.order == "lanes":  # a stream gives them new entries
            self._number_anew(state.paused)
        state.pending.extend(state.paused)
        if self.limits.order != "arrival":
            state.pending.sort(key=self.rank)
        state.paused.clear()

    # -- time and looking ---------------------------------------------------------------------------------------

    def forget_expired(self, now: int) -> None:
        """What TTLs do: records go after their retention, foreign leases when they lapse."""
        state = self.state
        for job_id, until in list(state.foreign_leases.items()):
            if until <= now:
                del state.foreign_leases[job_id]
        for job_id, job in list(state.jobs.items()):
            if job.retain_until is not None and job.retain_until <= now:
                del state.jobs[job_id]

    def waiting_due(self, now: int) -> Iterator[str]:
        """Waiting jobs past their deadline or their largest age; a delayed one has only its deadline."""
        for job_id, job in list(self.state.jobs.items()):
            if job.status is Status.PENDING and (
                (job.deadline is not None and job.deadline <= now)
                or (job_id not in self.state.delayed and job.since + self.limits.pending_max_age_ms <= now)
            ):
                yield job_id

    def entries(self) -> Iterable[tuple[str, str]]:
        """(id, state) of the two lists that a scaler counts."""
        return [
            *((one, "processing") for one in dict.fromkeys(self.state.processing)),
            *((one, "pending") for one in self.state.pending),
        ]
