"""Notices in memory: the executable specification of ``Notices``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from queuecore.notice import Attempt, DueNotice, NewNotice, Notice, Notices, NoticeStatus


@dataclass
class _Kept:
    notice: NewNotice
    planned_at: int
    next_at: int | None
    status: NoticeStatus = NoticeStatus.PENDING
    attempts: int = 0
    token: str = ""
    log: list[Attempt] = field(default_factory=list[Attempt])


class MemoryNotices(Notices):
    """See ``Notices``. Nothing is ever forgotten here."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    async def plan(self, notice: NewNotice) -> bool:
        if notice.event_id in self._kept:
            return False
        self._kept[notice.event_id] = _Kept(notice, self._clock(), self._clock())
        return True

    async def due(
        self, token: str, *, limit: int, per_target: int, skip: Sequence[str] = (), lease_ms: int
    ) -> Sequence[DueNotice]:
        now, found, taken = self._clock(), list[DueNotice](), dict[str, int]()
        for one in sorted(self._kept.values(), key=lambda one: one.next_at or 0):
            target = one.notice.target
            if one.next_at is None or one.next_at > now or target in skip or len(found) == limit:
                continue
            if taken.get(target, 0) == per_target:
                continue
            taken[target] = taken.get(target, 0) + 1
            one.next_at, one.token, one.attempts = now + lease_ms, token, one.attempts + 1
            found.append(DueNotice(one.notice, token, one.attempts, now - one.planned_at))
        return found

    async def settle(
        self, due: DueNotice, attempt: Attempt, status: NoticeStatus, *, retry_in_ms: int = 0, retain_ms: int
    ) -> bool:
        one = self._kept[due.notice.event_id]
        if one.token != due.token:
            return False
        one.token, one.status = "", status
        one.log.append(attempt)
        one.next_at = self._clock() + retry_in_ms if status is NoticeStatus.PENDING else None
        return True

    async def redeliver(self, event_id: str) -> bool:
        one = self._kept.get(event_id)
        if one is None:
            return False
        one.status, one.token, one.attempts = NoticeStatus.PENDING, "", 0
        one.planned_at = one.next_at = self._clock()
        return True

    async def get(self, event_id: str) -> Notice | None:
        one = self._kept.get(event_id)
        return None if one is None else _shown(one)

    async def page(
        self, *, status: NoticeStatus | None = None, limit: int = 50, cursor: str = ""
    ) -> tuple[Sequence[Notice], str]:
        place = (int(cursor.partition(":")[0]), cursor.partition(":")[2]) if cursor else None
        every = sorted(self._kept.values(), key=lambda one: (one.planned_at, one.notice.event_id), reverse=True)
        found = [
            one
            for one in every
            if (place is None or (one.planned_at, one.notice.event_id) < place)
            and (status is None or one.status is status)
        ]
        page = found[:limit]
        more = f"{page[-1].planned_at}:{page[-1].notice.event_id}" if page and len(found) >= limit else ""
        return [_shown(one) for one in page], more

    async def parked(self) -> int:
        return sum(one.status is NoticeStatus.PARKED for one in self._kept.values())


def _shown(one: _Kept) -> Notice:
    values = one.notice._asdict()
    del values["target"], values["traceparent"]
    return Notice(
        status=one.status,
        attempts=one.attempts,
        planned_at=one.planned_at,
        next_at=one.next_at,
        last_error=one.log[-1].error if one.log else "",
        log=tuple(one.log),
        **values,
    )
