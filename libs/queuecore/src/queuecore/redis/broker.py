"""What all transports share: every verb but claim, as one script each."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

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
    QueueLimits,
    Reaped,
    Renewed,
    Result,
    Submitted,
)
from queuecore.errors import ClaimLost, JobExpired, JobNotFound, QueueFull, ScriptContractError, WrongState
from queuecore.job import JobRecord, Status, record_from_fields
from queuecore.redis import keys as names
from queuecore.redis import scripts
from queuecore.redis.client import Link, raise_refusal

GROUP: Final = "gateway"
_REDELIVER_AFTER_MS: Final = 60_000
_PAGE: Final = 500


def fields_of(flat: Any) -> dict[str, str]:
    """A hash's reply as a mapping: RESP2 gives a flat list, RESP3 a dict."""
    if isinstance(flat, Mapping):
        return dict(flat)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def tolerant_record(fields: Mapping[str, str]) -> JobRecord:
    """The record, or what of it can be read: one damaged record must not stop a loop (case C9)."""
    try:
        return record_from_fields(fields)
    except ValueError:
        return JobRecord(id=fields.get("id", ""), status=fields.get("status", Status.PENDING))


class RedisBroker(Broker):
    """One model's queue on Redis; subclasses say where its jobs stand and how one is claimed."""

    transport: str

    def __init__(self, link: Link, model: str, limits: QueueLimits, *, clock: Callable[[], int] | None = None) -> None:
        self.model = model
        self.limits = limits
        self.keys = names.QueueKeys(model)
        self._link = link
        self._clock = clock  # tests only: moves the scripts' clock
        self._group_made = False

    # -- the call every verb makes ------------------------------------------------------------------------------

    async def _run(self, verb: str, job_id: str | None = None, **params: str | int) -> list[str]:
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
        reply = await self._run("submit", job.id, max_pending=self.limits.max_pending, fields=json.dumps(fields))
        match reply:
            case ["created", status, created_at]:
                return Submitted(created=True, status=Status(status), created_at=int(created_at))
            case ["exists", status]:
                return Submitted(created=False, status=Status(status))
            case ["full"]:
                raise QueueFull(self.model, self.limits.max_pending)
            case _:
                raise ScriptContractError(f"submit answered {reply}")

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

    async def jobs(
        self, *, status: Status | None = None, tenant: str | None = None, limit: int = 50, cursor: str = ""
    ) -> JobPage:
        found: list[JobRecord] = []
        score, last = ("+inf", "") if not cursor else cursor.split(":", 1)
        for _ in range(8):  # bounded: a page that filters much away ends early, with a cursor
            flat = await self._link.call(
                "ZRANGE", self.keys.jobs, score, "-inf", "BYSCORE", "REV", "LIMIT", 0, _PAGE, "WITHSCORES"
            )
            pairs = _pairs(flat)
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

    async def complete(self, claim: Claim, result: Result) -> Status:
        fields = {
            "result_key": result.key,
            "result_size": str(result.size),
            "result_content_type": result.content_type,
            "result_sha256": result.sha256,
        }
        if result.http_status is not None:
            fields["http_status"] = str(result.http_status)
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

    # -- upkeep -------------------------------------------------------------------------------------------------

    @abstractmethod
    async def _held(self, limit: int) -> Sequence[str]:
        """Ids of entries that some worker has taken, oldest first."""

    @abstractmethod
    async def _entries(self, limit: int) -> Sequence[tuple[str, str]]:
        """(id, state) of queue entries, pending and processing, the next ``limit`` at each call."""

    async def reap(self, *, first_seen_grace_ms: int = 5_000, limit: int = 1_000) -> Sequence[Reaped]:
        return [
            Reaped(job_id, await self._reap(job_id, grace_ms=first_seen_grace_ms, cause="lease lapsed"))
            for job_id in await self._held(limit)
        ]

    async def reap_dead(self, owned: OwnedClaim, exit_cause: str) -> Reaped:
        outcome = await self._reap(owned.job_id, grace_ms=0, cause=exit_cause, owned=owned)
        return Reaped(owned.job_id, outcome)

    async def _reap(self, job_id: str, *, grace_ms: int, cause: str, owned: OwnedClaim | None = None) -> Any:
        reply = await self._run(
            "reap",
            job_id,
            grace_ms=grace_ms,
            owner_client=owned.client if owned else "",
            fence=owned.fence if owned else "",
            claim_id=owned.claim_id if owned else "",
            cause=cause,
        )
        return _word(
            "reap", reply, {"requeued", "deadletter", "cancelled", "dropped", "adopted", "waiting", "live", "skipped"}
        )

    async def owners(self, *, limit: int = 1_000) -> Sequence[OwnedClaim]:
        held = await self._held(limit)
        wanted = ("status", "fence", "claim_id", "owner_client")
        rows = await self._link.pipeline([("HMGET", names.job(job_id), *wanted) for job_id in held])
        return [
            OwnedClaim(job_id, int(row[1]), row[2], row[3])
            for job_id, row in zip(held, rows, strict=True)
            if isinstance(row, list) and row[0] == Status.PROCESSING and row[1] and row[2] and row[3]
        ]

    async def revoke(self, *, grace_ms: int, limit: int = 1_000) -> Sequence[str]:
        held = await self._held(limit)
        replies = [(job_id, await self._run("revoke", job_id, grace_ms=grace_ms)) for job_id in held]
        return [job_id for job_id, reply in replies if _word("revoke", reply, {"revoked", "kept"}) == "revoked"]

    async def expire(self, *, limit: int = 1_000) -> Sequence[str]:
        now = self._clock() if self._clock else await server_ms(self._link)
        late, old = await self._link.pipeline(
            [
                ("ZRANGE", self.keys.deadlines, "-inf", now, "BYSCORE", "LIMIT", 0, limit),
                (
                    "ZRANGE",
                    self.keys.waiting,
                    "-inf",
                    now - self.limits.pending_max_age_ms,
                    "BYSCORE",
                    "LIMIT",
                    0,
                    limit,
                ),
            ]
        )
        expired: list[str] = []
        for job_id in dict.fromkeys([*late, *old]):
            reply = await self._run("expire", job_id, max_age_ms=self.limits.pending_max_age_ms)
            if _word("expire", reply, {"expired", "kept", "gone"}) == "expired":
                expired.append(job_id)
        return expired

    async def promote(self, *, limit: int = 1_000) -> int:
        match await self._run("promote", limit=limit):
            case ["promoted", count]:
                return int(count)
            case reply:
                raise ScriptContractError(f"promote answered {reply}")

    async def sweep(self, *, limit: int = 1_000) -> Sequence[tuple[str, str]]:
        entries = await self._entries(limit)
        rows = await self._link.pipeline([("HGET", names.job(job_id), "status") for job_id, _ in entries])
        swept: list[tuple[str, str]] = []
        for (job_id, state), status in zip(entries, rows, strict=True):
            if status in {Status.PENDING, Status.PROCESSING}:
                continue
            if _word("sweep", await self._run("sweep", job_id), {"swept", "kept"}) == "swept":
                swept.append((job_id, state))
        return swept

    # -- operators ----------------------------------------------------------------------------------------------

    async def pause(self, *, reason: str = "operator", cooldown_ms: int | None = None) -> None:
        reply = await self._run("pause", reason=reason, cooldown_ms="" if cooldown_ms is None else cooldown_ms)
        _ = _word("pause", reply, {"paused"})

    async def resume(self) -> None:
        _ = _word("resume", await self._run("resume"), {"resumed"})

    async def deadletters(self, *, offset: int = 0, limit: int = 50) -> Sequence[JobRecord]:
        ids: list[str] = await self._link.call("LRANGE", self.keys.deadletter, offset, offset + limit - 1)
        records = await read_records(self._link, ids)
        return [record for job_id in ids if (record := records[job_id])]

    async def redrive(self, job_id: str, *, generation: int | None = None) -> None:
        if generation is None:
            generation = (await self.get(job_id)).generation
        reply = await self._run("redrive", job_id, generation=generation)
        match reply:
            case ["redriven"]:
                return
            case ["over", status]:
                raise WrongState(job_id, status)
            case ["missing"]:
                _ = await self.get(job_id)
                raise JobNotFound(job_id)
            case _:
                raise ScriptContractError(f"redrive answered {reply}")

    async def drop(self, job_id: str) -> bool:
        return bool(await self._link.call("LREM", self.keys.deadletter, 0, job_id))

    # -- verdicts -----------------------------------------------------------------------------------------------

    async def events(self, consumer: str, *, wait_seconds: float = 0, limit: int = 100) -> Sequence[OutboxEvent]:
        for _ in range(2):
            try:
                if not self._group_made:
                    await self._make_group()
                stale = await self._link.call(
                    "XAUTOCLAIM", self.keys.outbox, GROUP, consumer, _REDELIVER_AFTER_MS, "0", "COUNT", limit
                )
                if stale[1]:
                    return [event for entry, flat in stale[1] if flat and (event := _event(entry, flat, 2))]
                block = ("BLOCK", max(1, int(wait_seconds * 1000))) if wait_seconds > 0 else ()
                reply = await self._link.call(
                    "XREADGROUP", "GROUP", GROUP, consumer, "COUNT", limit, *block, "STREAMS", self.keys.outbox, ">",
                    reply_seconds=wait_seconds + 15,
                )  # fmt: skip
            except ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise ScriptContractError(f"outbox: {error}") from error
                self._group_made = False  # the stream was deleted: begin again
                continue
            if not reply:
                return []
            entries = next(iter(reply.values())) if isinstance(reply, Mapping) else reply[0][1]
            return [event for entry, flat in entries if flat and (event := _event(entry, flat, 1))]
        return []

    async def _make_group(self) -> None:
        try:
            _ = await self._link.call("XGROUP", "CREATE", self.keys.outbox, GROUP, "0", "MKSTREAM")
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise ScriptContractError(f"outbox: {error}") from error
        self._group_made = True

    async def acknowledge(self, entries: Sequence[str]) -> None:
        if entries:
            replies = await self._link.pipeline(
                [("XACK", self.keys.outbox, GROUP, *entries), ("XDEL", self.keys.outbox, *entries)]
            )
            for reply in replies:
                if isinstance(reply, ResponseError):
                    raise ScriptContractError(f"outbox: {reply}")


async def read_records(link: Link, job_ids: Sequence[str]) -> dict[str, JobRecord | None]:
    """The records of many jobs in one round trip; None where there is none.

    Raises:
        BrokerUnavailable: the server would not say. None must mean "gone": objects are deleted on it.
    """
    rows = await link.pipeline([("HGETALL", names.job(job_id)) for job_id in job_ids])
    return {job_id: _record_of(job_id, row) for job_id, row in zip(job_ids, rows, strict=True)}


def _record_of(job_id: str, row: Any) -> JobRecord | None:
    if isinstance(row, ResponseError):
        raise_refusal("HGETALL", row)
        return JobRecord(id=job_id, status=Status.PENDING)  # a key of another type: damaged, and not gone
    return tolerant_record({"id": job_id} | fields_of(row)) if row else None


async def server_ms(link: Link) -> int:
    """The server's clock."""
    seconds, micros = await link.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def _pairs(flat: Any) -> list[tuple[str, float]]:
    if flat and isinstance(flat[0], list):  # RESP3
        return [(one, float(score)) for one, score in flat]
    return [(one, float(score)) for one, score in zip(flat[::2], flat[1::2], strict=True)]


def _event(entry: str, flat: Any, deliveries: int) -> OutboxEvent | None:
    fields = fields_of(flat)
    try:
        return OutboxEvent(
            entry, fields["event"], fields["job_id"], Status(fields["status"]), int(fields["finished_at"]), deliveries
        )
    except (KeyError, ValueError):
        return OutboxEvent(entry, "", "", Status.FAILED, 0, deliveries)  # not ours: acknowledged and gone


def _verdict(job_id: str, verb: str, reply: Sequence[str]) -> Status:
    match reply:
        case ["lost"]:
            raise ClaimLost(job_id)
        case [word] if word in set(Status):
            return Status(word)
        case _:
            raise ScriptContractError(f"{verb} answered {reply}")


def _word(verb: str, reply: Sequence[str], allowed: set[str]) -> str:
    if len(reply) == 1 and reply[0] in allowed:
        return reply[0]
    raise ScriptContractError(f"{verb} answered {reply}")
