"""Notices: the same for the specification and for Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from queuecore.notice import Attempt, NewNotice, Notices, NoticeStatus
from queuecore.redis import RedisQueue
from queuecore.redis.notices import RedisNotices
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import ManualClock
from queuecore.testing.notices import MemoryNotices
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
DAY_MS = 86_400_000


class Stand(NamedTuple):
    notices: Notices
    clock: ManualClock


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as valkey:
        yield valkey


@pytest.fixture(params=["memory", "resp2", "resp3"])
async def stand(request: pytest.FixtureRequest, server: ValkeyProcess) -> AsyncIterator[Stand]:
    clock = ManualClock()
    if request.param == "memory":
        yield Stand(MemoryNotices(clock), clock)
        return
    queue = RedisQueue(CommonSettings(redis_url=Secret(server.url)), name="test", protocol=int(request.param[-1]))
    link = queue.server._link
    _ = await link.call("FLUSHALL")
    yield Stand(RedisNotices(link, clock=clock), clock)
    await queue.aclose()


def new(event_id: str, target: str = "https://a:443") -> NewNotice:
    return NewNotice(event_id, "j", "m", "t", f"{target}/x", target, '{"ü": 1.0, "n": 9223372036854775807}')


async def due(stand: Stand, token: str = "t", **more: object) -> list[tuple[str, int]]:
    found = await stand.notices.due(token, **{"limit": 10, "per_target": 10, "lease_ms": 30_000, **more})  # pyright: ignore[reportArgumentType]
    return [(one.notice.event_id, one.attempt) for one in found]


async def test_attempt_is_one_claims_until_its_lease_is_over(stand: Stand) -> None:
    assert await stand.notices.plan(new("a:1"))
    assert not await stand.notices.plan(new("a:1"))
    (first,) = await stand.notices.due("one", limit=10, per_target=10, lease_ms=30_000)
    assert (first.notice, first.attempt, first.planned_ago_ms) == (new("a:1"), 1, 0)
    assert await due(stand, "two") == []

    stand.clock.advance(30_000)
    (again,) = await stand.notices.due("two", limit=10, per_target=10, lease_ms=30_000)
    assert (again.attempt, again.planned_ago_ms) == (2, 30_000)
    line = Attempt(at=1, outcome="delivered", status=200)
    assert not await stand.notices.settle(first, line, NoticeStatus.DELIVERED, retain_ms=DAY_MS)
    assert await stand.notices.settle(again, line, NoticeStatus.DELIVERED, retain_ms=DAY_MS)
    assert not await stand.notices.settle(again, line, NoticeStatus.DELIVERED, retain_ms=DAY_MS)
    shown = await stand.notices.get("a:1")
    assert shown is not None
    assert (shown.status, shown.next_at, list(shown.log)) == ("delivered", None, [line])
    stand.clock.advance(DAY_MS)
    assert await due(stand) == []


async def test_retry_is_due_when_it_was_planned_for(stand: Stand) -> None:
    _ = await stand.notices.plan(new("a:1"))
    (one,) = await stand.notices.due("t", limit=1, per_target=1, lease_ms=30_000)
    line = Attempt(at=1, outcome="retried", error="HTTP 500")
    assert await stand.notices.settle(one, line, NoticeStatus.PENDING, retry_in_ms=2_000, retain_ms=DAY_MS)
    stand.clock.advance(1_999)
    assert await due(stand) == []
    stand.clock.advance(1)
    assert await due(stand) == [("a:1", 2)]


async def test_receivers_share_and_busy_ones_are_passed_over(stand: Stand) -> None:
    for number in range(5):
        _ = await stand.notices.plan(new(f"a{number}:1"))
    _ = await stand.notices.plan(new("b:1", "https://b:443"))
    assert sorted(await due(stand, per_target=2)) == [("a0:1", 1), ("a1:1", 1), ("b:1", 1)]
    _ = await stand.notices.plan(new("c:1", "https://c:443"))
    assert await due(stand, skip=["https://a:443"]) == [("c:1", 1)]
    assert await due(stand, limit=2) == [("a2:1", 1), ("a3:1", 1)]
    assert await due(stand) == [("a4:1", 1)]


async def test_parked_ones_are_counted_listed_and_planned_anew(stand: Stand) -> None:
    for name in ("a:1", "b:1", "c:1"):
        _ = await stand.notices.plan(new(name))
        stand.clock.advance(1)
    found = await stand.notices.due("t", limit=2, per_target=10, lease_ms=30_000)
    for one in found:
        line = Attempt(at=1, outcome="parked", error="no")
        assert await stand.notices.settle(one, line, NoticeStatus.PARKED, retain_ms=DAY_MS)
    assert await stand.notices.parked() == 2
    page, cursor = await stand.notices.page(limit=2)
    rest, end = await stand.notices.page(limit=2, cursor=cursor)
    assert [one.event_id for one in (*page, *rest)] == ["c:1", "b:1", "a:1"]
    assert end == ""
    parked, _ = await stand.notices.page(status=NoticeStatus.PARKED)
    assert [(one.event_id, one.last_error) for one in parked] == [("b:1", "no"), ("a:1", "no")]

    assert await stand.notices.redeliver("a:1")
    assert not await stand.notices.redeliver("x:1")
    assert await stand.notices.parked() == 1
    assert sorted(await due(stand)) == [("a:1", 1), ("c:1", 1)]
    assert await stand.notices.get("x:1") is None
