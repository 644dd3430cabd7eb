"""Tenants of a sorted set take turns: who has little waits little, and the order holds within each (ADR 0008)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from queuecore.broker import Failure, NewJob, QueueLimits, Result, Worker
from queuecore.redis.client import Link
from queuecore.redis.sortedset_transport import SortedSetBroker
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import ManualClock
from queuecore.testing.memory import MemoryQueue
from queuecore.testing.operator import MemoryOperator, Stand, operator_of
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, requirement("claim:sortedset:fair-share")]
LIMITS = QueueLimits(order="deadline", max_pending=20_000, fair_share=True, pending_max_age_ms=86_400_000)


@pytest.fixture(params=["memory", "redis"])
async def fair(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    clock = ManualClock()
    if request.param == "memory":
        queue = MemoryQueue(clock)
        yield Stand(queue.broker("m", LIMITS), MemoryOperator(queue, "m"), clock)
        return
    server: ValkeyProcess = request.getfixturevalue("valkey")
    link = Link(CommonSettings(redis_url=Secret(server.url)), name="fair")
    _ = await link.call("FLUSHALL")
    broker = SortedSetBroker(link, "m", LIMITS, clock=clock)
    yield Stand(broker, operator_of("sortedset", link, "m", clock), clock)
    await broker.aclose()
    await link.aclose()


async def submit(stand: Stand, *job_ids: str) -> None:
    """Of the tenant that its first letter names."""
    for job_id in job_ids:
        _ = await stand.broker.submit(NewJob(id=job_id, fields={"tenant": job_id[0]}, priority="normal"))
        stand.clock.advance(1)


async def claimed(stand: Stand, count: int) -> list[str]:
    """The next jobs that are claimed; each completes."""
    found: list[str] = []
    for number in range(count):
        claim = await stand.broker.claim(Worker("w"), f"c{stand.clock.now_ms}-{number}")
        assert claim is not None
        found.append(claim.job_id)
        _ = await stand.broker.complete(claim, Result("r", 1, "text/plain", "0" * 64))
    return found


async def test_tenants_take_turns_and_each_keeps_its_own_order(fair: Stand) -> None:
    await submit(fair, "a1", "a2", "a3", "b1", "b2", "c1")

    assert await claimed(fair, 6) == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_the_earliest_deadline_of_a_tenant_is_its_first(fair: Stand) -> None:
    now = fair.clock.now_ms
    for job_id, deadline in (("a1", 9), ("a2", 5), ("b1", 60)):
        _ = await fair.broker.submit(
            NewJob(id=job_id, fields={"tenant": job_id[0]}, priority="normal", deadline=now + 1000 * deadline)
        )

    assert await claimed(fair, 3) == ["a2", "b1", "a1"]


async def test_a_tenant_that_was_away_has_saved_nothing_up(fair: Stand) -> None:
    await submit(fair, "b1", *(f"a{n}" for n in range(10, 20)))
    assert await claimed(fair, 7) == ["a10", "b1", "a11", "a12", "a13", "a14", "a15"]

    await submit(fair, "b2", "b3", "b4")

    assert await claimed(fair, 6) in (
        ["b2", "a16", "b3", "a17", "b4", "a18"],
        ["a16", "b2", "a17", "b3", "a18", "b4"],
    )


async def test_a_tenant_that_submits_one_at_a_time_gets_its_turns_and_no_more(fair: Stand) -> None:
    """Its tag outlives its row: else each new job would find it unserved, and its name would let it go first."""
    await submit(fair, *(f"b{n}" for n in range(10, 15)))
    order: list[str] = []
    for number in range(4):
        await submit(fair, f"a{number}")
        order += await claimed(fair, 2)

    assert [one[0] for one in order] == ["a", "b"] * 4


async def test_a_tenant_with_one_job_beside_one_with_ten_thousand_waits_for_two_at_the_most(fair: Stand) -> None:
    jobs = 10_000 if isinstance(fair.broker, SortedSetBroker) else 300  # the specification is made to be read
    for number in range(jobs):
        _ = await fair.broker.submit(NewJob(id=f"a{number:05}", fields={"tenant": "a"}, priority="normal"))
    _ = await claimed(fair, 3)

    await submit(fair, "z")

    assert "z" in await claimed(fair, 3)


async def test_any_number_of_tenants_wait_no_longer_than_the_bound(fair: Stand) -> None:
    """ADR 0008: before a tenant's first job at most 2 (N - 1) of others are claimed, N tenants having jobs."""
    tenants = "abcdefghijklmnop"
    await submit(fair, *(f"{tenant}{number:02}" for tenant in tenants for number in range(10, 20)))
    _ = await claimed(fair, 23)

    await submit(fair, "z1")

    assert "z1" in await claimed(fair, 2 * len(tenants) + 1)


async def test_a_released_job_keeps_its_place_in_its_tenants_row(fair: Stand) -> None:
    await submit(fair, "a1", "a2", "b1")
    claim = await fair.broker.claim(Worker("w"), "c1")
    assert claim is not None
    assert claim.job_id == "a1"
    _ = await fair.broker.release(claim)

    assert await claimed(fair, 3) == ["b1", "a1", "a2"]


async def test_paused_delayed_and_cancelled_jobs_hold_no_turn(fair: Stand) -> None:
    await submit(fair, "a1", "a2", "b1")
    claim = await fair.broker.claim(Worker("w"), "c1")
    assert claim is not None
    _ = await fair.broker.fail(claim, Failure("inference_error", "busy", retry_in_ms=60_000))
    _ = await fair.broker.cancel("b1")
    await fair.broker.pause()
    await submit(fair, "c1")
    assert await fair.broker.claim(Worker("w"), "c2") is None

    await fair.broker.resume()

    assert sorted(await claimed(fair, 2)) == ["a2", "c1"]
    assert await fair.broker.claim(Worker("w"), "c3") is None


async def test_what_an_operator_moves_by_hand_is_found_too(fair: Stand) -> None:
    await submit(fair, "a1", "b1")
    assert await fair.operator.pop() == "a1"
    await fair.operator.move_back("a1")

    assert sorted(await claimed(fair, 2)) == ["a1", "b1"]
    assert await fair.operator.residue() == []


async def test_an_entry_whose_record_is_gone_blocks_nobody(fair: Stand) -> None:
    await submit(fair, "a1", "a2", "b1")
    await fair.operator.delete_record("a1")

    assert sorted(await claimed(fair, 2)) == ["a2", "b1"]
    assert await fair.broker.claim(Worker("w"), "c9") is None
