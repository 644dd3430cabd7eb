"""Every Redis name, made in one place (design §3). Operators use redis-cli on them and KEDA reads them."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote

from queuecore.reservation import Scope

WEBHOOKS: Final = "webhooks:"  # prefix: targets, due:<target>, index, parked
NOTICES: Final = f"{WEBHOOKS}index"
NOTICES_PARKED: Final = f"{WEBHOOKS}parked"
DEDUP_SEEN: Final = "dedup:seen"  # zset item -> expiry ms (seed 004); dedup:jobs beside it names who took each
FAILED_COUNTS: Final = "failed:counts"  # hash id -> failures, of pipelines' runs
NO_CACHE: Final = "cache:"  # what submit is given where no result is reused
NO_IDEMPOTENCY: Final = "idem:"  # what submit is given where the request had no key


QUEUES = (
    "relayq:queues"  # hash model -> transport of every queue there ever was, for models that leave the configuration
)


def job(job_id: str) -> str:
    """The record, a hash."""
    return f"job:{job_id}"


def tombstone(job_id: str) -> str:
    """What the job was, after its retention."""
    return f"job:{job_id}:gone"


def progress(job_id: str) -> str:
    """The newest word of a running job: fence, sequence and text."""
    return f"job:{job_id}:progress"


def duplicate_marker(job_id: str, generation: int) -> str:
    """Sorted-set transport: this generation of the job has its verdict."""
    return f"result-terminal:{job_id}:{generation}"


def idempotency(scope: Scope) -> str:
    """Hash of an Idempotency-Key. Colons of tenant and route are encoded, so that no two scopes share a name."""
    return f"idem:{quote(scope.tenant, safe='')}:{quote(scope.route, safe='')}:{scope.key}"


def notice(event_id: str) -> str:
    """Hash of a webhook: what is sent where, and the next attempt."""
    return f"webhook:{event_id}"


def notice_log(event_id: str) -> str:
    """List of its attempts, JSON each."""
    return f"webhook:{event_id}:log"


def limit(name: str) -> str:
    """Hash of a budget, of a tenant or of an address."""
    return f"limit:{name}"


def done_channel(job_id: str) -> str:
    """Pub/sub: this job reached a verdict."""
    return f"job:{job_id}:done"


def completed_channel(model: str) -> str:
    """Pub/sub: a job of the model reached a verdict; ours and the seed's relays publish here."""
    return f"jobs:{model}:completed"


def changed_channel(model: str) -> str:
    """Pub/sub: a record of the model changed short of a verdict."""
    return f"jobs:{model}:changed"


class QueueKeys(NamedTuple):
    """The names of one model's queue."""

    model: str

    @property
    def base(self) -> str:
        """Prefix of all of them; the scripts build the names below from it."""
        return f"relay:{self.model}"

    @property
    def pending(self) -> str:
        """List of waiting ids, popped from the left."""
        return f"{self.base}:pending"

    @property
    def processing(self) -> str:
        """List of ids that BLMOVE moved."""
        return f"{self.base}:processing"

    @property
    def delayed(self) -> str:
        """Zset id -> due ms."""
        return f"{self.base}:delayed"

    @property
    def paused(self) -> str:
        """List where a paused queue's waiting ids are."""
        return f"{self.base}:paused"

    @property
    def deadletter(self) -> str:
        """List of dead letters."""
        return f"{self.base}:deadletter"

    @property
    def outbox(self) -> str:
        """Stream, one entry a verdict."""
        return f"{self.base}:outbox"

    @property
    def jobs(self) -> str:
        """Zset id -> created ms."""
        return f"{self.base}:jobs"

    @property
    def waiting(self) -> str:
        """Zset id -> created ms of all waiting jobs but the delayed: the oldest age, and who waits too long."""
        return f"{self.base}:waiting"

    @property
    def first_seen(self) -> str:
        """Zset of processing entries seen without a lease, by time first seen."""
        return f"{self.base}:first-seen"

    @property
    def missing(self) -> str:
        """Zset of live jobs seen in no structure, by time first seen."""
        return f"{self.base}:missing"

    @property
    def ordering(self) -> str:
        """Hash ordering_key -> the one live job of that key that may run."""
        return f"{self.base}:ordering"

    @property
    def deadlines(self) -> str:
        """Zset id -> deadline ms of waiting jobs that have one."""
        return f"{self.base}:deadlines"

    @property
    def state(self) -> str:
        """Hash: seq, ordered (how many wait for their key), breaker, paused (reason), paused_until."""
        return f"{self.base}:state"

    @property
    def cancel(self) -> str:
        """Pub/sub: running jobs to be cancelled."""
        return f"{self.base}:cancel"

    @property
    def queue(self) -> str:
        """Sorted-set transport: zset id -> score of waiting jobs."""
        return f"queue:{self.model}"

    @property
    def claimed(self) -> str:
        """Its hash `<id>` -> member and `<id>:score` -> the score it had."""
        return f"{self.queue}:claimed"

    @property
    def claim_owners(self) -> str:
        """Its hash id -> `<fence>:<claim_id>`; a relay of another make writes its own token."""
        return f"{self.queue}:claim-owners"

    @property
    def claims_idx(self) -> str:
        """Its zset id -> lease expiry ms."""
        return f"{self.queue}:claims-idx"

    @property
    def tenants(self) -> str:
        """Its zset tenant -> tag, where tenants take turns; `:idle` beside it is of those that have nothing to run."""
        return f"{self.queue}:tenants"

    def row(self, tenant: str) -> str:
        """Its zset id -> score of one tenant's waiting jobs, where tenants take turns."""
        return f"{self.queue}:tenant:{tenant}"

    @property
    def bell(self) -> str:
        """Its doorbell, a list; `:listeners` beside it is a zset of the workers that wait."""
        return f"{self.queue}:bell"

    @property
    def results(self) -> str:
        """Its result list, if it is wanted."""
        return f"results:{self.model}"

    @property
    def lanes(self) -> tuple[str, str]:
        """Stream transport: its two streams, the first to be served first."""
        return f"{self.base}:stream:high", f"{self.base}:stream"

    @property
    def entries(self) -> str:
        """Its hash id -> `<lane> <entry>`: the one entry that stands for the job."""
        return f"{self.base}:stream:entries"

    @property
    def litter(self) -> str:
        """Its set `<lane> <entry>` of undelivered entries whose job needs none any more; claims drop them."""
        return f"{self.base}:stream:litter"

    @property
    def stream_bell(self) -> str:
        """Its doorbell."""
        return f"{self.base}:stream:bell"

    @property
    def stream_dead(self) -> str:
        """Its dead letters, a stream."""
        return f"{self.base}:stream:dead"

    @property
    def fetched(self) -> str:
        """Pipeline stage: hash id -> JSON of who fetched it, when the last heartbeat was (s) and the score it had."""
        return f"processing:{self.model}"

    @property
    def stage_dead(self) -> str:
        """Its list of dead letters."""
        return f"deadletter:{self.model}"

    @property
    def stage_completed(self) -> str:
        """Its counter of completed runs."""
        return f"stats:{self.model}:completed"

    def lease(self, job_id: str) -> str:
        """String with a TTL, `<fence>:<claim_id>`; a seed-protocol relay writes its own value."""
        return f"{self.base}:lease:{job_id}"

    def tenant(self, tenant: str) -> str:
        """Set of the tenant's pending jobs, kept for tenants that have a cap."""
        return f"{self.base}:tenant:{tenant}"

    def ordered(self, ordering_key: str) -> str:
        """List of ids that wait for an earlier job of their key."""
        return f"{self.base}:ordered:{ordering_key}"
