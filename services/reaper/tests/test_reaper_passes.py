"""Every pass over the in-memory queue: what it does, what it counts, and that one broken model stops no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import pytest

from queuecore.broker import Claim, NewJob, QueueCounts, QueueLimits, Worker
from queuecore.clock import monotonic
from queuecore.errors import BrokerUnavailable
from queuecore.job import Status
from queuecore.testing.clock import ManualClock, eventually
from queuecore.testing.memory import RUN_ID, MemoryBroker, MemoryQueue
from queuecore.testing.requirement import requirement
from reaper.grace import RestartGrace
from reaper.passes.memory import show_memory
from reaper.passes.reap import reap
from reaper.passes.reconcile import reconcile
from reaper.passes.revoke import revoke
from reaper.upkeep import Upkeep

pytestmark = pytest.mark.anyio

LIMITS = QueueLimits(lease_ms=200, max_reap_attempts=1, pending_max_age_ms=50_000)
Sample = Callable[..., float]
Running = Callable[..., AbstractAsyncContextManager[Upkeep]]


class Stand:
    """A queue of one model with its own name, so that its metrics begin at zero."""

    def __init__(self, model: str) -> None:
        self.clock = ManualClock()
        self.queue = MemoryQueue(self.clock)
        self.broker = self.queue.broker(model, LIMITS)
        self.model = model
        self.server, self.signals = self.queue.server, self.queue.signals

    @property
    def access(self) -> tuple[Sequence[MemoryBroker], object, object]:
        return [self.broker], self.server, self.signals

    async def submit(self, job_id: str, **options: int) -> None:
        _ = await self.broker.submit(NewJob(id=job_id, fields={}, **options))  # pyright: ignore[reportArgumentType]

    async def claim(self, job_id: str, client: str = "", execution_ms: int = 3_600_000) -> Claim:
        claim = await self.broker.claim(Worker("w", client), f"claim of {job_id}", execution_ms=execution_ms)
        assert claim is not None
        assert claim.job_id == job_id
        return claim

    async def status(self, job_id: str) -> Status:
        return Status((await self.broker.get(job_id)).status)

    async def until(self, job_id: str, status: Status) -> None:
        async def reached() -> bool:
            return await self.status(job_id) == status

        _ = await eventually(reached)

    async def counts(self) -> QueueCounts:
        return await self.broker.counts()

    def connect(self, *clients: str) -> None:
        self.server.clients = frozenset({f"{RUN_ID}:1", *clients})


@pytest.fixture
def stand(request: pytest.FixtureRequest) -> Stand:
    return Stand(request.node.name)


async def test_a_lapsed_lease_is_reaped_and_counted_until_the_cap(
    stand: Stand, running: Running, sample: Sample
) -> None:
    await stand.submit("j")
    async with running(*stand.access):
        for outcome, status in (("requeued", Status.PENDING), ("deadletter", Status.FAILED)):
            _ = await stand.claim("j")
            stand.clock.advance(201)
            await stand.until("j", status)
            labels = {"model": stand.model, "outcome": outcome}
            _ = await eventually(lambda labels=labels: sample("gatewai_async_jobs_reaped_total", **labels) == 1)

    record = await stand.broker.get("j")
    assert (record.error_code, record.reaps) == ("worker_lost", 2)


@requirement("reap:reap:gone-or-terminal-dropped")
async def test_an_entry_whose_record_is_gone_or_terminal_is_dropped(
    stand: Stand, running: Running, sample: Sample
) -> None:
    await stand.submit("done")
    _ = await stand.broker.cancel("done")
    stand.broker.specification.state.processing += ["done", "gone"]
    async with running(*stand.access):
        _ = await eventually(lambda: not stand.broker.specification.state.processing)

    dropped = sample("gatewai_async_jobs_reaped_total", model=stand.model, outcome="dropped")
    swept = sample("gatewai_relay_queue_orphans_swept_total", model=stand.model, state="processing")
    assert dropped + swept == 2
    assert await stand.status("done") == Status.CANCELLED


@requirement("reap:reap:stranded-pop-requeued-uncounted")
async def test_an_entry_that_nobody_ever_claimed_waits_its_grace_and_goes_back(stand: Stand, running: Running) -> None:
    await stand.submit("j")
    assert stand.broker.specification.pop() == "j"
    async with running(*stand.access) as upkeep:
        _ = await eventually(lambda: upkeep.health().ready)
        assert (await stand.counts()).processing == 1
        stand.clock.advance(5_001)
        _ = await eventually(lambda: stand.broker.specification.state.pending == ["j"])

    assert (await stand.broker.get("j")).reaps == 0


async def test_what_nobody_reaped_is_shown_as_zero(stand: Stand, running: Running, sample: Sample) -> None:
    async with running(*stand.access):
        pass
    from prometheus_client import REGISTRY

    for outcome in ("requeued", "deadletter", "dropped"):
        labels = {"model": stand.model, "outcome": outcome}
        assert REGISTRY.get_sample_value("gatewai_async_jobs_reaped_total", labels) == 0


async def test_a_dead_owner_is_noticed_long_before_its_lease_is_over(
    stand: Stand, running: Running, sample: Sample
) -> None:
    stand.connect(f"{RUN_ID}:7")
    await stand.submit("j")
    _ = await stand.claim("j", client=f"{RUN_ID}:7")
    async with running(*stand.access) as upkeep:
        _ = await eventually(lambda: upkeep.health().ready)
        assert await stand.status("j") == Status.PROCESSING
        stand.connect()
        await stand.until("j", Status.PENDING)

    record = await stand.broker.get("j")
    assert (record.reaps, record.last_exit) == (1, "its connection is gone")
    assert sample("relayq_death_notices_total", model=stand.model, outcome="requeued") == 1
    assert sample("gatewai_async_jobs_reaped_total", model=stand.model, outcome="requeued") == 1


@requirement("death:outage:silence-is-no-death")
async def test_a_server_that_does_not_list_its_clients_leaves_the_lease_to_decide(
    stand: Stand, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    stand.server.clients = None
    await stand.submit("j")
    _ = await stand.claim("j", client=f"{RUN_ID}:7")
    async with running(*stand.access):
        _ = await eventually(lambda: [r for r in caplog.records if getattr(r, "event", "") == "death.doubted"])
        assert await stand.status("j") == Status.PROCESSING
        stand.clock.advance(201)
        await stand.until("j", Status.PENDING)

    assert len([r for r in caplog.records if getattr(r, "event", "") == "death.doubted"]) == 1


@requirement("restart:reap:owners-get-a-lease", "death:outage:silence-is-no-death")
async def test_after_an_outage_only_owners_seen_alive_since_can_be_noticed_dead(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = MemoryQueue()
    broker = queue.broker("outage", LIMITS._replace(lease_ms=60_000))
    for job_id in ("silent", "returned"):
        _ = await broker.submit(NewJob(id=job_id, fields={}))
    silent = await broker.claim(Worker("w", f"{RUN_ID}:7"), "a")
    returned = await broker.claim(Worker("w", f"{RUN_ID}:8"), "b")
    assert silent is not None
    assert returned is not None
    queue.server.clients = frozenset({f"{RUN_ID}:1", f"{RUN_ID}:7", f"{RUN_ID}:8"})
    looks = 0

    async def away(_: object) -> None:
        raise BrokerUnavailable("the path is cut")

    async def living(clients: Sequence[str]) -> frozenset[str]:
        nonlocal looks
        looks += 1
        return (queue.server.clients or frozenset()) & frozenset(clients)

    async with running([broker], queue.server, queue.signals) as upkeep:
        _ = await eventually(lambda: upkeep.health().ready)
        monkeypatch.setattr(queue.server, "living_clients", away)
        _ = await eventually(lambda: not upkeep.health().ready)
        queue.server.clients = frozenset({f"{RUN_ID}:1", f"{RUN_ID}:9"})
        _ = await broker.renew(returned, f"{RUN_ID}:9")
        monkeypatch.setattr(queue.server, "living_clients", living)
        _ = await eventually(lambda: looks > 2)
        queue.server.clients = frozenset({f"{RUN_ID}:1"})
        looks = 0
        _ = await eventually(lambda: looks > 6)
        records = {job_id: await broker.get(job_id) for job_id in ("silent", "returned")}

    assert (records["returned"].status, records["returned"].reaps) == ("pending", 1)
    assert (records["silent"].status, records["silent"].reaps) == ("processing", 0)


@requirement("run:revoke:hung-job-ends")
async def test_a_job_past_its_limit_ends_although_its_owner_renews(
    stand: Stand, running: Running, sample: Sample
) -> None:
    stand.connect(f"{RUN_ID}:7")
    await stand.submit("j")
    claim = await stand.claim("j", client=f"{RUN_ID}:7", execution_ms=100)
    async with running(*stand.access):
        for _ in range(30):
            stand.clock.advance(190)
            if await stand.status("j") == Status.PROCESSING:
                _ = await stand.broker.renew(claim, f"{RUN_ID}:7")
        await stand.until("j", Status.FAILED)

    assert (await stand.broker.get("j")).error_code == "execution_timeout"
    assert sample("relayq_revoked_total", model=stand.model) == 1


@requirement("promote:promote:due-job-returns")
async def test_a_delayed_job_returns_when_it_is_due(stand: Stand, running: Running, sample: Sample) -> None:
    await stand.submit("j", not_before=stand.clock.now_ms + 1_000)
    async with running(*stand.access) as upkeep:
        _ = await eventually(lambda: upkeep.health().ready)
        assert (await stand.counts()).delayed == 1
        stand.clock.advance(1_000)
        _ = await eventually(lambda: stand.broker.specification.state.pending == ["j"])
        _ = await eventually(lambda: sample("relayq_promoted_total", model=stand.model) == 1)


@requirement("job:expire:deadline-kept")
async def test_a_job_past_its_deadline_expires(stand: Stand, running: Running, sample: Sample) -> None:
    await stand.submit("late", deadline=stand.clock.now_ms + 1_000)
    await stand.submit("old")
    async with running(*stand.access):
        stand.clock.advance(1_001)
        await stand.until("late", Status.EXPIRED)
        assert await stand.status("old") == Status.PENDING
        stand.clock.advance(50_000)
        await stand.until("old", Status.EXPIRED)
        _ = await eventually(lambda: sample("relayq_expired_total", model=stand.model) == 2)

    assert {(await stand.broker.get(one)).error_code for one in ("late", "old")} == {
        "deadline_exceeded",
        "pending_too_long",
    }


async def test_a_waiting_entry_without_a_record_is_swept(stand: Stand, running: Running, sample: Sample) -> None:
    stand.broker.specification.state.pending.append("gone")
    async with running(*stand.access):
        _ = await eventually(lambda: not stand.broker.specification.state.pending)
        labels = {"model": stand.model, "state": "pending"}
        _ = await eventually(lambda: sample("gatewai_relay_queue_orphans_swept_total", **labels) == 1)


@requirement("reconcile:reconcile:job-in-no-structure-returns")
async def test_a_job_that_a_recipe_removed_comes_back(stand: Stand, running: Running, sample: Sample) -> None:
    await stand.submit("j")
    stand.broker.specification.state.pending.remove("j")
    async with running(*stand.access) as upkeep:
        _ = await eventually(lambda: upkeep.health().ready)
        assert (await stand.counts()).pending == 0, "the first sight only"
        stand.clock.advance(30_001)
        _ = await eventually(lambda: stand.broker.specification.state.pending == ["j"])
        _ = await eventually(lambda: sample("relayq_reconciled_total", model=stand.model, outcome="requeued") == 1)


async def test_depths_and_ages_are_shown(stand: Stand, running: Running, sample: Sample) -> None:
    await stand.submit("a")
    await stand.submit("b")
    _ = await stand.claim("a")
    stand.clock.advance(100)
    async with running(*stand.access):
        _ = await eventually(lambda: sample("gatewai_relay_queue_depth", model=stand.model, state="pending") == 1)
        assert sample("gatewai_relay_queue_depth", model=stand.model, state="processing") == 1
        assert sample("relayq_oldest_pending_age_seconds", model=stand.model) == 0.1
        await stand.broker.pause()
        _ = await eventually(lambda: sample("relayq_queue_paused", model=stand.model) == 1)
        assert sample("relayq_queue_jobs", model=stand.model, state="paused") == 1


async def test_the_memory_of_the_server_is_shown(stand: Stand, sample: Sample) -> None:
    stand.server.known = stand.server.known._replace(used_memory_bytes=5, maxmemory_bytes=7)

    await show_memory(stand.server)

    assert (sample("relayq_redis_used_memory_bytes"), sample("relayq_redis_maxmemory_bytes")) == (5, 7)


async def test_verdicts_that_nobody_takes_are_shown_and_said_once(
    stand: Stand, running: Running, sample: Sample, caplog: pytest.LogCaptureFixture
) -> None:
    await stand.submit("j")
    _ = await stand.broker.cancel("j")
    stand.clock.advance(120_001)
    async with running(*stand.access):
        _ = await eventually(lambda: sample("relayq_outbox_age_seconds", model=stand.model) > 120)
        events = await stand.broker.events("gateway")
        await stand.broker.acknowledge([event.entry for event in events])
        _ = await eventually(lambda: sample("relayq_outbox_age_seconds", model=stand.model) == 0)

    assert len([r for r in caplog.records if getattr(r, "event", "") == "verdict.delayed"]) == 1


async def test_a_model_that_fails_stops_no_other(running: Running, sample: Sample) -> None:
    queue = MemoryQueue()
    bad, good = queue.broker("fails-always", LIMITS), queue.broker("works-always", LIMITS)

    async def reap(**_: object) -> object:
        raise BrokerUnavailable("this model only")

    bad.reap = reap  # pyright: ignore[reportAttributeAccessIssue]
    queue.specifications["works-always"].state.processing.append("gone")
    failures = sample("relayq_pass_failures_total", **{"pass": "reap"})
    async with running([bad, good], queue.server, queue.signals) as upkeep:
        _ = await eventually(lambda: not queue.specifications["works-always"].state.processing)
        _ = await eventually(lambda: list(upkeep.health().detail) == ["reap fails-always"])

    assert sample("relayq_pass_failures_total", **{"pass": "reap"}) > failures


@requirement("restart:reap:owners-get-a-lease")
@pytest.mark.parametrize("upkeep", [reap, revoke, reconcile])
async def test_what_a_lapsed_lease_decides_waits_out_the_grace(
    stand: Stand, upkeep: Callable[[MemoryBroker, RestartGrace], Awaitable[None]]
) -> None:
    await stand.submit("j")
    _ = await stand.claim("j", execution_ms=100)
    if upkeep is reconcile:
        stand.broker.specification.state.processing.remove("j")
        stand.clock.advance(201)
        _ = await stand.broker.reconcile()  # the first sight
    stand.clock.advance(60_000)
    grace = RestartGrace({stand.model: 60.0})
    _ = grace.connected(f"{RUN_ID}:1", monotonic())
    grace.away()

    await upkeep(stand.broker, grace)
    _ = grace.answered(monotonic())
    await upkeep(stand.broker, grace)
    assert await stand.status("j") == Status.PROCESSING

    grace = RestartGrace({stand.model: 60.0})
    _ = grace.connected(f"{RUN_ID}:1", monotonic())
    for _ in range(2):
        await upkeep(stand.broker, grace)
        stand.clock.advance(60_000)
    assert await stand.status("j") != Status.PROCESSING
