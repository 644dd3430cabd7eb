"""The queue's contract: what every transport does, in one page of prose with types.

One ``Broker`` is one queue (one model). Every verb ends as done, refused (an exception of ``errors.py``) or unknown
(``OutcomeUnknown``); after an unknown the caller repeats the same call with the same arguments, and a call that had
already run answers the same words and changes nothing more (G11). ``BrokerUnavailable`` means: did not run.

Guards that hold for every verb (guarantees G1-G11, docs/guarantees.md):

* renew, complete, fail and release are refused (``ClaimLost``) unless fence *and* claim_id are the current ones.
* renew, release and fail also need status ``processing``; ``complete`` is accepted as well while the job is pending
  again and nobody else has claimed it: its work is valid.
* A flagged job (cancel requested) ends ``cancelled`` whatever its owner reports.
* A verdict writes the record, leaves every structure, appends one outbox event and lets the next job of the ordering
  key in, in one step.

Times are epoch milliseconds of the queue's server; durations carry their unit in the name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from queuecore.gates import Gate
from queuecore.job import JobRecord, Status
from queuecore.reservation import Reservation

LONGEST_DEDUP_KEY = 2_048
FOREIGN = "foreign"  # owner and claim_id of a claim that a seed-protocol relay holds (design §4.4)


class Retention(NamedTuple):
    """How long finished jobs stay readable, shared by every process (design §10.2)."""

    result_ms: int = 86_400_000
    deadletter_ms: int = 2_592_000_000
    tombstone_ms: int = 604_800_000


Order = Literal["arrival", "lanes", "deadline", "priority", "stage"]


class QueueLimits(NamedTuple):
    """What the scripts of one queue need to know; from ``models.yaml`` and the common settings."""

    lease_ms: int = 60_000
    max_pending: int = 10_000
    max_pending_per_tenant: int | None = None
    max_reap_attempts: int = 3
    pending_max_age_ms: int = 604_800_000
    retention: Retention = Retention()
    order: Order = "arrival"  # lists arrival, streams lanes (high before normal), stages stage, sorted sets another
    batch_size: int = 10  # entries that one peek of a sorted set looks at
    reclaim_interval_ms: int = 0  # pause between looks at a sorted set's leases, where it is longer than the reaper's
    result_dedup_ms: int = 21_600_000  # how long a sorted set's duplicate marker lives
    fair_share: bool = False  # sorted sets: tenants take turns, the order holds within each (ADR 0008)
    result_list: bool = False  # sorted sets: push every verdict to results:<name>
    gate: Gate | None = None  # what else decides whether a job may be claimed now: limits of the model and its provider


class Dedup(NamedTuple):
    """An item that is taken once: who names it again within its window is told of the first job (seed 004)."""

    key: str  # a URL, a digest: at most LONGEST_DEDUP_KEY characters, none of them a control character
    window_ms: int = 604_800_000
    force: bool = False  # take it again all the same; the window begins anew


class Reuse(NamedTuple):
    """A result that may answer later requests for the same (seed 004, ADR 0009)."""

    key: str  # cache:<endpoint_hash>:<params_hash>
    keep_ms: int = 900_000  # from its completion
    fresh: bool = False  # run all the same; its result replaces what was kept


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """What submit needs. ``fields`` are record fields as text; see ``JobRecord`` for their meaning.

    ``id, model, status, created_at, seq, generation`` are written by the script and may not be in ``fields``.
    """

    id: str
    fields: Mapping[str, str]
    priority: str = "false"
    not_before: int | None = None
    deadline: int | None = None
    ordering_key: str = ""
    reservation: Reservation | None = None
    dedup: Dedup | None = None
    reuse: Reuse | None = None
    tenant_cap: int | None = None  # of the caller's own; the queue's max_pending_per_tenant holds beside it


class Submitted(NamedTuple):
    """``created`` is False when this id had been submitted before: nothing changed, and ``created_at`` is not said."""

    created: bool
    status: Status
    created_at: int = 0


class Worker(NamedTuple):
    """Who claims. ``client`` is ``<run_id>:<client id>`` of its liveness connection, or "" when unknown."""

    name: str
    client: str = ""


class Claim(NamedTuple):
    """The right to run one job now."""

    record: JobRecord
    fence: int
    claim_id: str

    @property
    def job_id(self) -> str:
        """The claimed job."""
        return self.record.id


class Result(NamedTuple):
    """What a run produced; the object is stored before ``complete`` is called."""

    key: str
    size: int
    content_type: str
    sha256: str
    http_status: int | None = None
    tokens: int | None = None  # what the answer says it used; None: it does not say


class Progress(NamedTuple):
    """A line of a running model's answer. ``sequence`` grows within a run: it counts the lines."""

    sequence: int
    text: str


class Breaker(NamedTuple):
    """After ``failures`` infrastructure failures in a row the queue pauses for ``cooldown_ms``; 0 switches it off."""

    failures: int = 0
    cooldown_ms: int = 60_000


class Failure(NamedTuple):
    """Why a run failed. ``retry_in_ms`` None is final; otherwise the job waits that long and is claimed again."""

    code: str
    message: str
    http_status: int | None = None
    retry_in_ms: int | None = None
    infrastructure: bool = False
    breaker: Breaker = Breaker()


class Renewed(NamedTuple):
    """The lease holds until the server's now + lease."""

    cancel_requested: bool


class Cancelled(NamedTuple):
    """``status`` cancelled: it never becomes anything else. processing: the flag is set, the owner will see it."""

    status: Status
    already: bool = False


class OwnedClaim(NamedTuple):
    """A claim that names its owner's liveness connection, for the fast death notice."""

    job_id: str
    fence: int
    claim_id: str
    client: str


ReapOutcome = Literal["requeued", "deadletter", "dropped", "cancelled", "adopted", "waiting", "live", "skipped", "ok"]


class Reaped(NamedTuple):
    """What one look at one entry did."""

    job_id: str
    outcome: ReapOutcome


class QueueCounts(NamedTuple):
    """Depths of one queue. ``pending`` and ``processing`` are what KEDA sees."""

    pending: int = 0
    processing: int = 0
    delayed: int = 0
    paused: int = 0
    ordered: int = 0
    deadletter: int = 0
    outbox: int = 0
    oldest_pending_ms: int | None = None  # age of the oldest waiting job, delayed ones apart
    paused_reason: str = ""  # "" | operator | breaker
    paused_until: int | None = None
    oldest_outbox_ms: int | None = None  # age of the oldest verdict nobody has acknowledged
    duplicates: int = 0  # results refused because their job had its verdict, since the queue began
    gate_waits: int = 0  # claims that a gate put off, since the queue began
    gate_drops: int = 0  # jobs that a gate failed
    gate_faults: int = 0  # claims put off because a gate could not say


class OutboxEvent(NamedTuple):
    """One verdict. ``entry`` acknowledges it; ``event_id`` (`<id>:<generation>`) is what receivers de-duplicate by.

    ``record`` is that of a client who wants to be told, as it was at the verdict: it may be erased or redriven since.
    """

    entry: str
    event_id: str
    job_id: str
    status: Status
    finished_at: int
    deliveries: int = 1
    record: JobRecord | None = None


class JobPage(NamedTuple):
    """Newest first; ``cursor`` "" is the end."""

    jobs: Sequence[JobRecord]
    cursor: str


class Broker(ABC):
    """One queue. Safe for concurrent use by many coroutines, except ``claim``: one at a time per instance."""

    model: str
    limits: QueueLimits

    # -- clients ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def submit(self, job: NewJob) -> Submitted:
        """Record, queue entry and index in one step.

        A repeat of the same id answers ``created=False`` and the record's status.

        Raises:
            QueueFull: ``max_pending`` jobs wait already.
            TenantQueueFull: so many jobs of this tenant are pending in this queue already.
            ReservationLost: another request has the idempotency key meanwhile.
            DuplicateItem: its ``dedup`` key was submitted within the window; names the first job.
            ResultReused: names the job that has the result of such a request, or is about to have it.
        """

    @abstractmethod
    async def get(self, job_id: str) -> JobRecord:
        """The record of any job of any model.

        Raises:
            JobExpired: retention is over; carries the tombstone.
            JobNotFound: neither record nor tombstone.
        """

    @abstractmethod
    async def position(self, job_id: str, *, limit: int = 10_000) -> int | None:
        """Jobs ahead of this one among those that could run now; None when it is not there or beyond ``limit``."""

    @abstractmethod
    async def cancel(self, job_id: str) -> Cancelled:
        """Pending, delayed, paused or ordered: cancelled at once. Processing: flagged and signalled (G8).

        Raises:
            WrongState: another verdict was reached.
            JobNotFound, JobExpired: see ``get``.
        """

    @abstractmethod
    async def erase(self, job_id: str) -> None:
        """Forget a finished job now: its record goes, its tombstone says ``deleted``, its objects are the caller's.

        Raises:
            WrongState: it has no verdict yet.
            JobNotFound, JobExpired: see ``get``.
        """

    @abstractmethod
    async def jobs(
        self, *, status: Status | None = None, tenant: str | None = None, limit: int = 50, cursor: str = ""
    ) -> JobPage:
        """This queue's jobs, newest first. ``cursor`` is stable under new submissions.

        A cursor is `<created_at>:<id>` of the last job looked at, so it is a place in every queue's list. A page may
        end early, with a cursor, when the filters leave little.
        """

    def item_of(self, job: NewJob) -> str:
        """What ``dedup:seen`` knows it by: never another tenant's, never another queue's."""
        return f"{self.model} {job.fields.get('tenant', '') or '-'} {job.dedup.key}" if job.dedup else ""

    def tenant_cap(self, job: NewJob) -> int | None:
        """How many jobs of its tenant may be pending here: the smaller of the queue's cap and the caller's own."""
        return min(
            (cap for cap in (self.limits.max_pending_per_tenant, job.tenant_cap) if cap is not None), default=None
        )

    # -- the owner of a claim -----------------------------------------------------------------------------------

    @abstractmethod
    async def claim(
        self, worker: Worker, claim_id: str, *, wait_seconds: float | None = 0, execution_ms: int = 3_600_000
    ) -> Claim | None:
        """Take one job, waiting up to ``wait_seconds`` (0: do not wait; None: for ever); None when there is none.

        A repeat with the same claim_id while that claim is current gives the same claim. Entries that may not run
        (record gone or terminal, cancelled, expired, owned by somebody alive) are dealt with on the way and skipped.
        One that a gate refuses waits, uncounted, and hides no other; one that a gate drops fails (G7).
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """Make a waiting ``claim`` return None soon; a job that arrives in the same instant goes back to the head.

        Sticky: every later ``claim`` of this instance answers None at once.
        """

    @abstractmethod
    async def renew(self, claim: Claim, client: str = "") -> Renewed:
        """Extend the lease and register ``client`` as the owner's connection; revives a lapsed, unreaped lease.

        Raises:
            ClaimLost: stop, write nothing.
        """

    @abstractmethod
    async def report(self, claim: Claim, progress: Progress) -> None:
        """The newest word of this run, readable for a minute. No part of the job's state: losing it loses nothing.

        Raises:
            ClaimLost: stop, write nothing.
        """

    @abstractmethod
    async def progress(self, record: JobRecord) -> Progress | None:
        """The newest word of the run that the record tells of; None when there is none, or it is of another run."""

    @abstractmethod
    async def complete(self, claim: Claim, result: Result) -> Status:
        """The verdict ``completed`` (or ``cancelled``, if that was requested).

        ``pending`` for a pipeline's run that has stages before it: in the same step it left this one and stands in the
        next one's queue, with a fresh score and fresh counters; the result is its input there.

        Raises:
            ClaimLost: another owner has it, or another verdict was reached; nothing changed.
        """

    @abstractmethod
    async def fail(self, claim: Claim, failure: Failure) -> Status:
        """``failed``, or ``pending`` again when it is to be retried (failures + 1), or ``cancelled``.

        A pipeline's run that failed for good is a dead letter of its stage: redrive resumes it there.

        Raises:
            ClaimLost: see ``complete``.
        """

    @abstractmethod
    async def release(self, claim: Claim) -> Status:
        """Give the job back to its old place, uncounted: ``pending`` (or ``cancelled``).

        Raises:
            ClaimLost: see ``complete``.
        """

    @abstractmethod
    async def complete_foreign(self, job_id: str, status: Status, *, result_key: str = "", error: str = "") -> Status:
        """The verdict that a seed-protocol relay published (completed, failed or cancelled; design §4.4).

        Raises:
            ClaimLost: one of our claims is current, or a verdict was reached; nothing changed.
        """

    # -- upkeep: bounded work per call, any number of callers ---------------------------------------------------

    @abstractmethod
    async def reap(self, *, first_seen_grace_ms: int = 5_000, limit: int = 1_000) -> Sequence[Reaped]:
        """Look at every processing entry: requeue, dead-letter, drop, adopt or leave it (design §4, phase 0)."""

    @abstractmethod
    async def owners(self, *, limit: int = 1_000) -> Sequence[OwnedClaim]:
        """Processing claims that name a liveness connection."""

    @abstractmethod
    async def reap_dead(self, owned: OwnedClaim, exit_cause: str) -> Reaped:
        """Reap without waiting for the lease, if the claim *and* its registered client are still these."""

    @abstractmethod
    async def revoke(self, *, grace_ms: int, limit: int = 1_000) -> Sequence[str]:
        """``failed``/``execution_timeout`` for jobs past ``execute_until`` + grace, whatever their lease says."""

    @abstractmethod
    async def expire(self, *, limit: int = 1_000) -> Sequence[str]:
        """``expired`` for waiting jobs past their deadline or the largest waiting age."""

    @abstractmethod
    async def promote(self, *, limit: int = 1_000) -> int:
        """Move due delayed jobs to pending, and end a breaker's pause that is over."""

    @abstractmethod
    async def sweep(self, *, limit: int = 1_000) -> Sequence[tuple[str, str]]:
        """Remove queue entries whose record is gone; (job id, state) of each."""

    @abstractmethod
    async def reconcile(self, *, grace_ms: int = 30_000, limit: int = 1_000) -> Sequence[Reaped]:
        """Bring back live jobs that are in no structure, seen so twice at least ``grace_ms`` apart."""

    # -- operators ----------------------------------------------------------------------------------------------

    @abstractmethod
    async def counts(self) -> QueueCounts:
        """Depths now."""

    @abstractmethod
    async def pause(self, *, reason: str = "operator", cooldown_ms: int | None = None) -> None:
        """Hide waiting jobs from claims and from KEDA; running ones go on. Submissions are accepted and wait."""

    @abstractmethod
    async def resume(self) -> None:
        """End a pause; order is kept."""

    @abstractmethod
    async def purge(self, *, limit: int = 1_000) -> int:
        """Verdict ``cancelled``/``purged`` for up to ``limit`` waiting jobs; how many. Repeat until 0."""

    @abstractmethod
    async def deadletters(self, *, offset: int = 0, limit: int = 50) -> Sequence[JobRecord]:
        """Dead letters, oldest first."""

    @abstractmethod
    async def redrive(self, job_id: str, *, generation: int | None = None) -> None:
        """Pending again with generation + 1 and fresh counters; any claim of before is void.

        ``generation`` is the one to leave (default: the record's); a repeat with the same one changes nothing.

        Raises:
            WrongState: it is not a dead letter.
            JobNotFound, JobExpired: see ``get``.
        """

    @abstractmethod
    async def drop(self, job_id: str) -> bool:
        """Remove a dead letter from its list; the record stays until its retention ends. False: was not there."""

    # -- verdicts -----------------------------------------------------------------------------------------------

    @abstractmethod
    async def events(self, consumer: str, *, wait_seconds: float = 0, limit: int = 100) -> Sequence[OutboxEvent]:
        """Verdicts nobody has been given yet, then those a consumer has held for over a minute."""

    @abstractmethod
    async def acknowledge(self, entries: Sequence[str]) -> None:
        """Delivered: remove them from the outbox."""


class Signals(ABC):
    """Wake-ups. Losing one loses nothing: every listener reads the state again by itself within a bound."""

    @abstractmethod
    def changes(self) -> AsyncIterator[str]:
        """Ids of jobs whose record changed; "" after a (re)connection: look at everything again."""

    @abstractmethod
    def cancels(self, model: str, on_connected: Callable[[str], None]) -> AsyncIterator[str]:
        """Ids of running jobs of ``model`` to be cancelled; reports ``<run_id>:<client id>`` at each connection."""

    @abstractmethod
    def completions(self, model: str) -> AsyncIterator[str]:
        """Payloads published on ``jobs:<model>:completed``, by our scripts and by anybody else: not to be trusted."""


class ServerFacts(NamedTuple):
    """What start-up checks and the reaper must know of the queue's server."""

    run_id: str
    version: str
    maxmemory_policy: str  # "" when the server does not say
    appendonly: bool | None
    appendfsync: str
    used_memory_bytes: int = 0  # 0: the server does not say
    maxmemory_bytes: int = 0  # 0: no limit, or the server does not say


class Server(ABC):
    """The queue's server as a whole."""

    @abstractmethod
    async def ping(self) -> None:
        """Answer or raise ``BrokerUnavailable``."""

    @abstractmethod
    async def now_ms(self) -> int:
        """The server's clock, epoch milliseconds: what every time in a record was read from (G10)."""

    @abstractmethod
    async def facts(self) -> ServerFacts:
        """Facts that INFO and CONFIG give, as far as they are allowed."""

    @abstractmethod
    async def living_clients(self, clients: Sequence[str]) -> frozenset[str] | None:
        """Which of these connections (``<run_id>:<client id>``) are open now; None when the server does not say."""

    @abstractmethod
    async def first_seen(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Milliseconds since each key was first named in such a call; 0 for new ones. Survives every process."""

    @abstractmethod
    async def forget(self, keys: Sequence[str]) -> None:
        """Remove keys from that register."""

    @abstractmethod
    async def records(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        """The record of each job of any model; None where there is none (any more)."""
