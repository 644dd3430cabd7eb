"""What only the sorted set has: scores, the seed's registers, leases that end, markers, the doorbell (seed 002)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise

import anyio
import pytest

from queuecore.broker import Claim, Failure, NewJob, QueueLimits, Result, Worker
from queuecore.clock import monotonic
from queuecore.errors import BrokerUnavailable, ClaimLost
from queuecore.job import Status
from queuecore.redis.client import Link
from queuecore.redis.list_transport import ListBroker
from queuecore.redis.sortedset_transport import SortedSetBroker
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import ManualClock, eventually
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
LIMITS = QueueLimits(lease_ms=300_000, order="deadline", result_list=True)
RESULT = Result("k", 1, "text/plain", "0" * 64)


class Table:
    """A queue, redis-cli on its keys, and the clock of its scripts."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.clock = ManualClock()
        self.broker = SortedSetBroker(link, "m", LIMITS, clock=self.clock)

    async def submit(self, job_id: str, **options: object) -> None:
        _ = await self.broker.submit(NewJob(id=job_id, fields={}, **options))  # pyright: ignore[reportArgumentType]

    async def claim(self, claim_id: str = "c1") -> Claim:
        found = await self.broker.claim(Worker("w"), claim_id)
        assert found is not None
        return found

    async def lease_ends(self, job_id: str) -> int:
        return int(float(await self.link.call("ZSCORE", "queue:m:claims-idx", job_id)))


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as valkey:
        yield valkey


@pytest.fixture
async def table(server: ValkeyProcess) -> AsyncIterator[Table]:
    link = Link(CommonSettings(redis_url=Secret(server.url)), name="sortedset")
    _ = await link.call("FLUSHALL")
    made = Table(link)
    yield made
    await made.broker.aclose()
    await link.aclose()


async def test_the_keys_of_a_claim_are_the_seeds(table: Table) -> None:
    await table.submit("j1")
    score = await table.link.call("ZSCORE", "queue:m", "j1")
    claim = await table.claim()

    assert await table.link.call("EXISTS", "queue:m") == 0
    assert await table.link.call("HMGET", "queue:m:claimed", "j1", "j1:score") == ["j1", score]
    assert await table.link.call("HGET", "queue:m:claim-owners", "j1") == f"{claim.fence}:{claim.claim_id}"
    assert await table.lease_ends("j1") == table.clock.now_ms + 300_000


async def test_a_release_restores_the_score_that_somebody_gave_by_hand(table: Table) -> None:
    await table.submit("j1")
    _ = await table.link.call("ZADD", "queue:m", "7.5", "j1")
    claim = await table.claim()
    _ = await table.broker.release(claim)
    assert float(await table.link.call("ZSCORE", "queue:m", "j1")) == 7.5


@requirement("transport:claim:lapsed-deadline")
async def test_a_lapsed_deadline_does_not_send_a_job_to_and_fro(table: Table) -> None:
    deadline = table.clock.now_ms + 1_000
    await table.submit("j1", deadline=deadline)
    table.clock.advance(999)
    claim = await table.claim()
    assert await table.lease_ends("j1") == deadline + 30_000, "min(lease, deadline + 30 s)"

    for _ in range(10):  # a run that does not end at its deadline keeps its claim for as long as it renews
        table.clock.advance(30_000)
        _ = await table.broker.renew(claim)
        assert await table.lease_ends("j1") > table.clock.now_ms + 30_000, "never lapsed already, nor before the next"
        assert [one.outcome for one in await table.broker.reap()] == ["live"]
    table.clock.advance(45_001)
    assert [one.outcome for one in await table.broker.reap()] == ["requeued"]
    assert await table.broker.claim(Worker("w"), "c2") is None
    record = await table.broker.get("j1")
    assert (record.status, record.error_code, record.reaps) == ("expired", "deadline_exceeded", 1)


@requirement("transport:complete:generations-apart")
async def test_two_generations_of_one_id_have_a_marker_and_a_result_each(table: Table) -> None:
    strict = SortedSetBroker(table.link, "m", LIMITS._replace(max_reap_attempts=0), clock=table.clock)
    await table.submit("j1")
    _ = await table.claim()
    table.clock.advance(300_001)
    assert [one.outcome for one in await strict.reap()] == ["deadletter"]
    await table.broker.redrive("j1")
    _ = await table.broker.complete(await table.claim("c2"), RESULT)

    assert await table.link.call("GET", "result-terminal:j1:1") == "failed"
    assert await table.link.call("GET", "result-terminal:j1:2") == "completed"
    assert 21_590_000 < await table.link.call("PTTL", "result-terminal:j1:2") <= 21_600_000
    told = [json.loads(one) for one in await table.link.call("LRANGE", "results:m", 0, -1)]
    assert [(one["job_id"], one["status"]) for one in told] == [("j1", "failed"), ("j1", "completed")]
    await strict.aclose()


@requirement("transport:complete:duplicate-suppressed")
async def test_a_duplicate_result_is_counted_and_adds_nothing(table: Table) -> None:
    await table.submit("j1")
    stale = await table.claim()
    table.clock.advance(300_001)
    _ = await table.broker.reap()
    _ = await table.broker.complete(await table.claim("c2"), RESULT)
    with pytest.raises(ClaimLost):
        _ = await table.broker.complete(stale, RESULT)

    counts = await table.broker.counts()
    assert (counts.duplicates, counts.outbox) == (1, 1)
    assert await table.link.call("LLEN", "results:m") == 1


@requirement("transport:complete:empty-token")
async def test_an_empty_token_publishes_nothing(table: Table) -> None:
    await table.submit("j1")
    claim = await table.claim()
    for token in (claim._replace(claim_id=""), claim._replace(claim_id="", fence=0)):
        with pytest.raises(ClaimLost):
            _ = await table.broker.complete(token, RESULT)
    _ = await table.broker.release(claim)
    with pytest.raises(ClaimLost):
        _ = await table.broker.complete(claim._replace(claim_id="", fence=0), RESULT)
    assert (await table.broker.get("j1")).status == "pending"


@requirement("transport:reap:one-copy")
async def test_a_retry_copy_and_a_reclaimed_copy_never_both_wait(table: Table) -> None:
    await table.submit("j1")
    stale = await table.claim()
    table.clock.advance(300_001)
    _ = await table.broker.reap()
    retry = Failure("inference_error", "busy", 503, retry_in_ms=1_000)
    with pytest.raises(ClaimLost):
        _ = await table.broker.fail(stale, retry)
    counts = await table.broker.counts()
    assert (counts.pending, counts.delayed) == (1, 0)

    assert await table.broker.fail(await table.claim("c2"), retry) is Status.PENDING
    table.clock.advance(300_001)
    assert list(await table.broker.reap()) == []
    counts = await table.broker.counts()
    assert (counts.pending, counts.processing, counts.delayed) == (0, 0, 1)


@requirement("transport:claim:429-behind-fresh")
async def test_jobs_that_an_upstream_refuses_with_429_do_not_run_before_fresh_ones(table: Table) -> None:
    for number in range(4):
        await table.submit(f"old{number}")
        table.clock.advance(1)
    for number in range(4):
        refused = await table.claim(f"c{number}")
        _ = await table.broker.fail(refused, Failure("inference_error", "429", 429, retry_in_ms=100))
    for number in range(4):
        await table.submit(f"new{number}")
    table.clock.advance(100)
    assert await table.broker.promote() == 4
    order = [(await table.claim(f"d{number}")).job_id for number in range(8)]
    assert order[:4] == [f"new{number}" for number in range(4)]


@requirement("transport:sweep:unparsable-is-said")
@pytest.mark.parametrize("member", ['{"id": "x"', "nobody's", ""])
async def test_a_member_that_is_no_job_is_reported_when_it_is_removed(
    table: Table, caplog: pytest.LogCaptureFixture, member: str
) -> None:
    _ = await table.link.call("ZADD", "queue:m", 1, member)
    await table.submit("good")
    assert (await table.claim()).job_id == "good"
    assert await table.link.call("ZSCORE", "queue:m", member) is None
    (line,) = [one for one in caplog.records if getattr(one, "event", "") == "entry.dropped"]
    assert getattr(line, "entry", None) == member


async def test_a_relay_of_the_release_before_pops_without_a_claim_and_its_job_comes_back(table: Table) -> None:
    await table.submit("j1")
    assert await table.link.call("ZPOPMIN", "queue:m")
    for wait in (0, 30_000):
        table.clock.advance(wait)
        _ = await table.broker.reconcile()
    assert (await table.claim()).job_id == "j1"


async def test_a_bell_has_no_more_tokens_than_workers_listen_and_none_without(table: Table) -> None:
    for number in range(5):
        await table.submit(f"j{number}")
    assert await table.link.call("LLEN", "queue:m:bell") == 0
    soon = int((await table.link.call("TIME"))[0]) * 1000 + 60_000
    _ = await table.link.call("ZADD", "queue:m:bell:listeners", soon, "w1", soon, "w2", 1, "gone")
    for number in range(5, 9):
        await table.submit(f"j{number}")
    assert await table.link.call("LLEN", "queue:m:bell") == 2


@requirement("transport:claim:doorbell-is-a-wake-up")
async def test_a_token_eaten_by_a_relay_that_dies_costs_a_second_at_the_most(table: Table) -> None:
    found: list[float] = []
    began = 0.0

    async def wait() -> None:
        claim = await table.broker.claim(Worker("w"), "c1", wait_seconds=10)
        assert claim is not None
        found.append(monotonic())

    async with anyio.create_task_group() as group:
        group.start_soon(wait)

        async def listens() -> bool:
            return bool(await table.link.call("ZCARD", "queue:m:bell:listeners"))

        _ = await eventually(listens)
        began = monotonic()
        pipeline = [("ZADD", "queue:m", 1, "j1"), ("HSET", "job:j1", "id", "j1", "status", "pending")]
        _ = await table.link.pipeline(pipeline)  # an entry whose token another relay has taken
    assert found[0] - began < 1.5


async def test_waiting_workers_are_woken_at_once(table: Table) -> None:
    waits: list[float] = []

    async def wait() -> None:
        assert await table.broker.claim(Worker("w"), "c", wait_seconds=5) is not None
        waits.append(monotonic())

    for number in range(5):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)

            async def blocked() -> bool:
                return "cmd=blpop" in await table.link.call("CLIENT", "LIST")

            _ = await eventually(blocked)
            waits.append(monotonic())
            await table.submit(f"j{number}")
        await_claim = await table.broker.get(f"j{number}")
        assert await_claim.status == "processing"
    assert min(later - before for before, later in pairwise(waits)) < 0.2


@requirement("transport:any:change-refused")
async def test_another_transport_is_refused_while_jobs_are_left_and_taken_when_it_is_drained(table: Table) -> None:
    await table.submit("j1")
    lists = ListBroker(table.link, "m", QueueLimits(), clock=table.clock)
    with pytest.raises(BrokerUnavailable, match=r"models\.m\.transport: .* under transport sortedset.*relayq purge m"):
        _ = await lists.submit(NewJob(id="j2", fields={}))
    claim = await table.claim()
    with pytest.raises(BrokerUnavailable, match="1 jobs are left"):
        _ = await lists.submit(NewJob(id="j2", fields={}))
    _ = await table.broker.complete(claim, RESULT)
    assert (await lists.submit(NewJob(id="j2", fields={}))).created
    other = SortedSetBroker(table.link, "m", LIMITS, clock=table.clock)
    with pytest.raises(BrokerUnavailable, match="under transport list"):
        _ = await other.submit(NewJob(id="j3", fields={}))
    await lists.aclose()
    await other.aclose()
