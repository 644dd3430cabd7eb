"""Notices on Redis: a hash and a log each, a due set for each receiver, and the set of receivers by their first."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from queuecore.errors import ScriptContractError
from queuecore.notice import Attempt, DueNotice, NewNotice, Notice, Notices, NoticeStatus
from queuecore.redis import keys as names
from queuecore.redis import scripts
from queuecore.redis.client import Link
from queuecore.redis.records import fields_of, scored

INDEX_MS: Final = 32 * 86_400_000
_PAGE: Final = 200
_LOOKS: Final = 8


class RedisNotices(Notices):
    """See ``Notices``."""

    def __init__(self, link: Link, *, clock: Callable[[], int] | None = None) -> None:
        self._link = link
        self._clock = clock  # tests only: moves the scripts' clock

    async def _run(self, verb: str, event_id: str | None = None, **params: str | int) -> list[str]:
        script = scripts.load(f"edge/notice_{verb}", "")
        known: dict[str, str | int] = {"webhooks": names.WEBHOOKS, "now": str(self._clock()) if self._clock else ""}
        if event_id is not None:
            known |= {"notice": names.notice(event_id), "event_id": event_id}
        return await script(self._link, known | params)

    async def plan(self, notice: NewNotice) -> bool:
        fields = {"job_id": notice.job_id, "model": notice.model, "tenant": notice.tenant, "url": notice.url}
        fields |= {"traceparent": notice.traceparent} if notice.traceparent else {}
        text = json.dumps(fields | {"body": notice.body})
        reply = await self._run("plan", notice.event_id, target=notice.target, fields=text, retain_ms=INDEX_MS)
        return _word("plan", reply, {"planned": True, "known": False})

    async def due(
        self, token: str, *, limit: int, per_target: int, skip: Sequence[str] = (), lease_ms: int
    ) -> Sequence[DueNotice]:
        reply = await self._run(
            "due", token=token, limit=limit, per_target=per_target, skip=json.dumps(list(skip)), lease_ms=lease_ms
        )
        _, now, *ids = reply
        rows = await self._link.pipeline([("HGETALL", names.notice(event_id)) for event_id in ids])
        found = [fields_of(row) for row in rows if row]
        return [
            DueNotice(_new(fields), token, int(fields["attempts"]), int(now) - int(fields["planned_at"]))
            for fields in found
            if fields.get("token") == token
        ]

    async def settle(
        self, due: DueNotice, attempt: Attempt, status: NoticeStatus, *, retry_in_ms: int = 0, retain_ms: int
    ) -> bool:
        reply = await self._run(
            "settle",
            due.notice.event_id,
            token=due.token,
            status=status,
            retry_in_ms=retry_in_ms,
            attempt=msgspec.json.encode(attempt).decode(),
            error=attempt.error,
            retain_ms=retain_ms,
        )
        return _word("settle", reply, {"settled": True, "lost": False})

    async def redeliver(self, event_id: str) -> bool:
        return _word("redeliver", await self._run("redeliver", event_id), {"planned": True, "missing": False})

    async def get(self, event_id: str) -> Notice | None:
        key = names.notice(event_id)
        row, log = await self._link.pipeline([("HGETALL", key), ("LRANGE", names.notice_log(event_id), 0, -1)])
        if not row:
            return None
        return _notice(fields_of(row), [msgspec.json.decode(line, type=Attempt) for line in log])

    async def page(
        self, *, status: NoticeStatus | None = None, limit: int = 50, cursor: str = ""
    ) -> tuple[Sequence[Notice], str]:
        found: list[Notice] = []
        score, last = ("+inf", "") if not cursor else cursor.split(":", 1)
        for _ in range(_LOOKS):
            flat = await self._link.call(
                "ZRANGE", names.NOTICES, score, "-inf", "BYSCORE", "REV", "LIMIT", 0, _PAGE, "WITHSCORES"
            )
            pairs = scored(flat)
            fresh = [(one, at) for one, at in pairs if not last or (at, one) < (float(score), last)]
            rows = await self._link.pipeline([("HGETALL", names.notice(one)) for one, _ in fresh])
            for (event_id, at), row in zip(fresh, rows, strict=True):
                score, last = f"{at:.0f}", event_id
                if row and (status is None or fields_of(row).get("status") == status):
                    found.append(_notice(fields_of(row), ()))
                if len(found) == limit:
                    return found, f"{score}:{last}"
            if len(pairs) < _PAGE:
                return found, ""
        return found, f"{score}:{last}"

    async def parked(self) -> int:
        return int(await self._link.call("ZCARD", names.NOTICES_PARKED))


def _word(verb: str, reply: Sequence[str], meaning: Mapping[str, bool]) -> bool:
    if len(reply) == 1 and reply[0] in meaning:
        return meaning[reply[0]]
    raise ScriptContractError(f"notice_{verb} answered {reply}")


def _new(fields: Mapping[str, str]) -> NewNotice:
    return NewNotice(*(fields.get(name, "") for name in NewNotice._fields))


def _notice(fields: Mapping[str, str], log: Sequence[Attempt]) -> Notice:
    values: dict[str, Any] = {name: fields.get(name, "") for name in ("last_error", *NewNotice._fields)}
    del values["target"], values["traceparent"]
    return Notice(
        status=fields.get("status", NoticeStatus.PENDING),
        attempts=int(fields.get("attempts") or 0),
        planned_at=int(fields.get("planned_at") or 0),
        next_at=int(fields["next_at"]) if fields.get("next_at") else None,
        log=log,
        **values,
    )
