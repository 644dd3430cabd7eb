"""What clients and owners of claims ask: one script a verb, the same for every transport."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from redis.exceptions import ResponseError

from queuecore.broker import (
    FOREIGN,
    Broker,
    Cancelled,
    Claim,
    Failure,
    JobPage,
    NewJob,
    Progress,
    QueueLimits,
    Renewed,
    Result,
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
    ScriptContractError,
    TenantQueueFull,
    WrongState,
)
from queuecore.job import JobRecord, Status
from queuecore.redis import keys as names
from queuecore.redis import scripts
from queuecore.redis.change import note_transport
from queuecore.redis.client import Link
from queuecore.redis.records import fields_of, read_records, scored, tolerant_record

_PAGE: Final = 500
PROGRESS_KEEP_MS: Final = 60_000
_log = logging.getLogger(__name__)


class Refused(NamedTuple):
    """A gate's answer to a claim: this job, or every job of the queue, may not be claimed for so long."""

    seconds: float
    whole_queue: bool


class RedisVerbs(Broker):
    """The verbs of clients and of owners."""

    transport: str

    def __init__(self, link: Link, model: str, limits: QueueLimits, *, clock: Callable[[], int] | None = None) -> None:
        self.model = model
        self.limits = limits
        self.keys = names.QueueKeys(model)
        self._link = link
        self._clock = clock  # tests only: moves the scripts' clock
        self._transport_noted = False
        self._gates = json.dumps([dict(one.described()) for one in limits.gate.parts] if limits.gate else [])

    # -- the call every verb makes ------------------------------------------------------------------------------

    async def _run(self, verb: str, job_id: str | None = None, **params: str | int) -> list[str]:
        if not self._transport_noted:
            await note_transport(self._link, self.keys, self.transport)
            self._transport_noted = True
        script = scripts.load(verb, self.transport)
        known: dict[str, str | int] = {
            "queue": self.keys.base,
            "job": names.job(job_id) if job_id is not None else "",
            "job_id": job_id or "",
            "now": str(self._clock()) if self._clock else "",
            "max_reaps": self.limits.max_reap_attempts,
            "result_ms": self.limits.retention.result_ms,
            "deadletter_ms": self.limits.retention.deadletter_ms,
            "tombstone_ms": self.limits.retention.tombstone_ms,
        }
        wanted = {*script.keys, *script.args}
        return await script(self._link, {name: known[name] for name in wanted & known.keys()} | params)

    # -- clients ------------------------------------------------------------------------------------------------

    async def submit(self, job: NewJob) -> Submitted:
        fields = {name: value for name, value in job.fields.items() if value != ""}
        fields |= {"model": self.model, "priority": job.priority}
        if job.not_before is not None:
            fields["not_before"] = str(job.not_before)
        if job.deadline is not None:
            fields["deadline"] = str(job.deadline)
        if job.ordering_key:
            fields["ordering_key"] = job.ordering_key
        fields |= self._entry_fields(job)
        held, cap = job.reservation, self.tenant_cap(job)
        reply = await self._run(
            "submit",
            job.id,
            max_pending=self.limits.max_pending,
            fields=json.dumps(fields),
            idem=names.idempotency(held.scope) if held else names.NO_IDEMPOTENCY,
            token=held.token if held else "",
            fingerprint=held.fingerprint if held else "",
            tenant_cap="" if cap is None else cap,
            seen=names.DEDUP_SEEN,
            item=self.item_of(job),
            window_ms=job.dedup.window_ms if job.dedup else 0,
            force="1" if job.dedup and job.dedup.force else "",
            cache=job.reuse.key if job.reuse else names.NO_CACHE,
            cache_ms=job.reuse.keep_ms if job.reuse else "",
            fresh="1" if job.reuse and job.reuse.fresh else "",
        )
        match reply:
            case ["created", status, created_at]:
                return Submitted(created=True, status=Status(status), created_at=int(created_at))
            case ["exists", status]:
                return Submitted(created=False, status=Status(status))
            case ["duplicate", first]:
                raise DuplicateItem(first)
            case ["cached", other]:
                raise ResultReused(other)
            case ["unreserved"]:
                raise ReservationLost("another request with this Idempotency-Key is or was being accepted")
            case ["tenant_full"] if cap is not None:
                raise TenantQueueFull(self.model, cap)
            case ["full"]:
                raise QueueFull(self.model, self.limits.max_pending)
            case _:
                raise ScriptContractError(f"submit answered {reply}")

    def _entry_fields(self, job: NewJob) -> dict[str, str]:  # noqa: ARG002  for transports that have some
        """Record fields of the transport's own."""
        return {}

    async def get(self, job_id: str) -> JobRecord:
        fields, gone = await self._link.pipeline([("HGETALL", names.job(job_id)), ("HGETALL", names.tombstone(job_id))])
        if isinstance(fields, ResponseError):
            raise ScriptContractError(f"{names.job(job_id)}: {fields}")
        if fields:
            return tolerant_record(fields_of(fields))
        if gone and not isinstance(gone, ResponseError):
            raise JobExpired(job_id, fields_of(gone))
        raise JobNotFound(job_id)

    async def cancel(self, job_id: str) -> Cancelled:
        reply = await self._run("cancel", job_id)
        match reply:
            case ["cancelled", when]:
                return Cancelled(Status.CANCELLED, already=when == "before")
            case ["processing"]:
                return Cancelled(Status.PROCESSING)
            case ["over", status]:
                raise WrongState(job_id, status)
            case ["missing"]:
                _ = await self.get(job_id)
                raise JobNotFound(job_id)
            case _:
                raise ScriptContractError(f"cancel answered {reply}")

    async def erase(self, job_id: str) -> None:
        reply = await self._run("erase", job_id)
        match reply:
            case ["erased"]:
                return
            case ["live", status]:
                raise WrongState(job_id, status)
            case ["missing"]:
                _ = await self.get(job_id)
                raise JobNotFound(job_id)
            case _:
                raise ScriptContractError(f"erase answered {reply}")

    async def jobs(
        self, *, status: Status | None = None, tenant: str | None = None, limit: int = 50, cursor: str = ""
    ) -> JobPage:
        found: list[JobRecord] = []
        score, last = ("+inf", "") if not cursor else cursor.split(":", 1)
        for _ in range(8):  # bounded: a page that filters much away ends early, with a cursor
            flat = await self._link.call(
                "ZRANGE", self.keys.jobs, score, "-inf", "BYSCORE", "REV", "LIMIT", 0, _PAGE, "WITHSCORES"
            )
            pairs = scored(flat)
            fresh = [(one, at) for one, at in pairs if not last or (at, one) < (float(score), last)]
            records = await read_records(self._link, [one for one, _ in fresh])
            for job_id, at in fresh:
                record = records[job_id]
                score, last = f"{at:.0f}", job_id
                if (
                    record is None
                    or (status and record.status != status)
                    or (tenant is not None and record.tenant != tenant)
                ):
                    continue
                found.append(record)
                if len(found) == limit:
                    return JobPage(found, f"{score}:{last}")
            if len(pairs) < _PAGE:
                return JobPage(found, "")
        return JobPage(found, f"{score}:{last}")

    # -- the owner of a claim -----------------------------------------------------------------------------------

    async def _claim_entry(
        self, worker: Worker, claim_id: str, job_id: str, execution_ms: int
    ) -> Claim | Refused | None:
        """The claim of this entry; None when it may not run or somebody was faster."""
        reply = await self._run(
            "claim",
            job_id,
            claim_id=claim_id,
            owner=worker.name,
            owner_client=worker.client,
            lease_ms=self.limits.lease_ms,
            execution_ms=execution_ms,
            gates=self._gates,
        )
        match reply:
            case ["claimed", *flat]:
                record = tolerant_record({"id": job_id} | fields_of(flat))
                return Claim(record, record.fence, claim_id)
            case ["dropped", why]:
                if why == "unknown":
                    _log.warning(
                        "an entry without a record was removed from the queue",
                        extra={"event": "entry.dropped", "model": self.model, "entry": job_id},
                    )
                return None
            case ["waiting", milliseconds, gate, reach]:
                self._note_refusal(job_id, gate, fault=reach == "fault")
                return Refused(int(milliseconds) / 1000, reach == "queue")
            case ["moved" | "held" | "cancelled" | "expired" | "deadletter" | "gate_dropped"]:
                return None
            case _:
                raise ScriptContractError(f"claim answered {reply}")

    def _note_refusal(self, job_id: str, gate: str, *, fault: bool) -> None:
        _log.log(
            logging.WARNING if fault else logging.DEBUG,
            "a gate could not say; the job waits" if fault else "a gate refused the claim; the job waits",
            extra={
                "event": "gate.failed" if fault else "gate.refused",
                "model": self.model,
                "job_id": job_id,
                "gate": gate,
            },
        )

    async def renew(self, claim: Claim, client: str = "") -> Renewed:
        reply = await self._run(
            "renew",
            claim.job_id,
            fence=claim.fence,
            claim_id=claim.claim_id,
            lease_ms=self.limits.lease_ms,
            owner_client=client,
        )
        match reply:
            case ["renewed", flag]:
                return Renewed(cancel_requested=flag == "1")
            case ["lost"]:
                raise ClaimLost(claim.job_id)
            case _:
                raise ScriptContractError(f"renew answered {reply}")

    async def report(self, claim: Claim, progress: Progress) -> None:
        reply = await self._run(
            "edge/report",
            claim.job_id,
            progress=names.progress(claim.job_id),
            fence=claim.fence,
            claim_id=claim.claim_id,
            sequence=progress.sequence,
            text=progress.text,
            keep_ms=PROGRESS_KEEP_MS,
        )
        if one_word("edge/report", reply, {"reported", "lost"}) == "lost":
            raise ClaimLost(claim.job_id)

    async def progress(self, record: JobRecord) -> Progress | None:
        kept: str | None = await self._link.call("GET", names.progress(record.id))
        if kept is None:
            return None
        fence, sequence, text = kept.split(" ", 2)
        return Progress(int(sequence), text) if int(fence) == record.fence else None

    async def complete(self, claim: Claim, result: Result) -> Status:
        fields = {
            "result_key": result.key,
            "result_size": str(result.size),
            "result_content_type": result.content_type,
            "result_sha256": result.sha256,
        }
        if result.http_status is not None:
            fields["http_status"] = str(result.http_status)
        if result.tokens is not None:
            fields["tokens_used"] = str(result.tokens)
        reply = await self._run(
            "complete",
            claim.job_id,
            fence=claim.fence,
            claim_id=claim.claim_id,
            status=Status.COMPLETED,
            fields=json.dumps(fields),
        )
        return _verdict(claim.job_id, "complete", reply)

    async def complete_foreign(self, job_id: str, status: Status, *, result_key: str = "", error: str = "") -> Status:
        fields = (
            {"result_key": result_key}
            if status == Status.COMPLETED
            else {"error_code": "inference_error", "error_message": error}
        )
        if status == Status.CANCELLED:
            fields = {"error_code": "cancelled"}
        reply = await self._run(
            "complete", job_id, fence="", claim_id=FOREIGN, status=status, fields=json.dumps(fields)
        )
        return _verdict(job_id, "complete", reply)

    async def fail(self, claim: Claim, failure: Failure) -> Status:
        fields = {"error_code": failure.code, "error_message": failure.message}
        if failure.http_status is not None:
            fields["http_status"] = str(failure.http_status)
        reply = await self._run(
            "fail",
            claim.job_id,
            fence=claim.fence,
            claim_id=claim.claim_id,
            retry_in_ms="" if failure.retry_in_ms is None else failure.retry_in_ms,
            fields=json.dumps(fields),
            breaker_failures=failure.breaker.failures if failure.infrastructure else 0,
            cooldown_ms=failure.breaker.cooldown_ms,
        )
        return _verdict(claim.job_id, "fail", reply)

    async def release(self, claim: Claim) -> Status:
        reply = await self._run("release", claim.job_id, fence=claim.fence, claim_id=claim.claim_id)
        return _verdict(claim.job_id, "release", reply)


def _verdict(job_id: str, verb: str, reply: Sequence[str]) -> Status:
    match reply:
        case ["lost"]:
            raise ClaimLost(job_id)
        case [word] if word in set(Status):
            return Status(word)
        case _:
            raise ScriptContractError(f"{verb} answered {reply}")


def one_word(verb: str, reply: Sequence[str], allowed: set[str]) -> str:
    """The script's one word, if it is one of these."""
    if len(reply) == 1 and reply[0] in allowed:
        return reply[0]
    raise ScriptContractError(f"{verb} answered {reply}")
