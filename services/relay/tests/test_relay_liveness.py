"""Leases, lost claims and cancellations, with the signal or without it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queuecore.broker import Broker, Claim, QueueLimits, Renewed, Worker
from queuecore.clock import monotonic
from queuecore.errors import BrokerUnavailable, ClaimLost
from queuecore.job import JobRecord
from queuecore.names import new_claim_id
from queuecore.testing.clock import eventually
from queuecore.testing.requirement import requirement
from relay.attempt import ExitCode
from relay.liveness import Keeper, Listener, LivenessThread
from relay.tally import Tally

pytestmark = pytest.mark.anyio
Bench = Any  # conftest's


class Deaf:
    """Signals that are all lost."""

    def __init__(self, client: str = "memory:1") -> None:
        self._client = client

    async def cancels(self, model: str, on_connected: Callable[[str], None]) -> AsyncIterator[str]:
        on_connected(self._client)
        _ = await asyncio.Event().wait()
        yield ""


@requirement("cancel:poll:lost-signal-costs-a-second", "cancel:any:cancelled-is-final")
@pytest.mark.parametrize("heard", [True, False])
async def test_a_cancelled_run_hangs_up_on_the_model_within_2_s_whether_the_signal_came_or_not(
    bench: Bench, hang: Any, heard: bool
) -> None:
    bench.model.handler = hang
    if not heard:
        bench.signals = Deaf()
    job_id = await bench.submit()
    running = bench.start()
    exchange = await bench.asked()
    began = monotonic()
    _ = await bench.broker.cancel(job_id)
    _ = await exchange.closed.wait()
    took = monotonic() - began
    assert took < (0.5 if heard else 2)
    assert await running is ExitCode.DONE
    record = await bench.record(job_id)
    assert (record.status, record.error_code) == ("cancelled", "cancelled")
    assert [event.status for event in await bench.events()] == ["cancelled"]
    assert bench.results() == []


async def test_a_cancel_of_another_job_of_the_model_disturbs_nobody(bench: Bench, hang: Any) -> None:
    bench.model.handler = hang
    mine = await bench.submit()
    running = bench.start()
    _ = await bench.asked()
    other = await bench.submit()
    _ = await bench.broker.claim(Worker("other"), new_claim_id())
    _ = await bench.broker.cancel(other)
    done, _ = await asyncio.wait({running}, timeout=1.5)
    assert not done
    _ = await bench.broker.cancel(mine)
    assert await running is ExitCode.DONE


@requirement("relay:exit:code-says-what-happened")
async def test_a_lost_claim_ends_the_run_with_3_and_writes_nothing(bench: Bench, hang: Any) -> None:
    bench.model.handler = hang
    job_id = await bench.submit()
    running = bench.start()
    exchange = await bench.asked()
    bench.queue.clock.advance(61_000)
    assert [one.outcome for one in await bench.broker.reap(first_seen_grace_ms=0)] == ["requeued"]
    winner = await bench.broker.claim(Worker("winner"), new_claim_id())
    before = await bench.record(job_id)
    assert await running is ExitCode.CLAIM_LOST
    _ = await eventually(exchange.closed.is_set, within=2)
    assert await bench.record(job_id) == before
    assert winner is not None
    assert bench.results() == []
    assert await bench.events() == []


@requirement("fence:complete:requeued-accepted")
async def test_a_run_whose_job_was_only_requeued_goes_on_and_its_verdict_counts(bench: Bench) -> None:
    finish = asyncio.Event()

    async def slow(exchange: Any) -> None:
        _ = await exchange.read_body()
        _ = await finish.wait()
        await exchange.answer("200 OK", b"valid")

    bench.model.handler = slow
    job_id = await bench.submit()
    running = bench.start()
    _ = await bench.asked()
    bench.queue.clock.advance(61_000)
    assert [one.outcome for one in await bench.broker.reap(first_seen_grace_ms=0)] == ["requeued"]
    done, _ = await asyncio.wait({running}, timeout=2.5)  # two looks
    assert not done
    finish.set()
    assert await running is ExitCode.DONE
    record = await bench.record(job_id)
    assert (record.status, record.claims, record.reaps) == ("completed", 1, 1)
    assert await bench.result(job_id) == b"valid"
    assert len(await bench.events()) == 1


@requirement("verdict:complete:late-one-refused")
async def test_a_late_finisher_is_refused_and_the_winners_bytes_stay(bench: Bench) -> None:
    late = asyncio.Event()

    async def slow(exchange: Any) -> None:
        _ = await exchange.read_body()
        _ = await late.wait()
        await exchange.answer("200 OK", b"late")

    bench.model.handler = slow
    bench.liveness_broker = BlindBroker(bench.broker)
    job_id = await bench.submit()
    running = bench.start()
    _ = await bench.asked()
    bench.queue.clock.advance(61_000)
    _ = await bench.broker.reap(first_seen_grace_ms=0)
    winner = await bench.broker.claim(Worker("winner"), new_claim_id())
    late.set()
    assert await running is ExitCode.CLAIM_LOST
    record = await bench.record(job_id)
    assert (record.status, record.claim_id) == ("processing", winner.claim_id)


class BlindBroker:
    """A liveness whose Redis connection is dead: it learns nothing, and does not end the run (design §10.1)."""

    def __init__(self, below: Broker) -> None:
        self.model, self.limits = below.model, below.limits

    async def renew(self, claim: Claim, client: str = "") -> Renewed:
        raise BrokerUnavailable("away")

    async def get(self, job_id: str) -> JobRecord:
        raise BrokerUnavailable("away")


async def test_redis_out_of_reach_does_not_end_the_run(bench: Bench) -> None:
    finish = asyncio.Event()

    async def slow(exchange: Any) -> None:
        _ = await exchange.read_body()
        _ = await finish.wait()
        await exchange.answer("200 OK", b"done")

    bench.model.handler = slow
    bench.liveness_broker = BlindBroker(bench.broker)
    job_id = await bench.submit()
    running = bench.start()
    _ = await bench.asked()
    done, _ = await asyncio.wait({running}, timeout=1.5)
    assert not done
    finish.set()
    assert await running is ExitCode.DONE
    assert (await bench.record(job_id)).status == "completed"


class Ledger:
    """A broker of one job that notes what its keeper does."""

    model = "m"

    def __init__(self, lease_ms: int) -> None:
        self.limits = QueueLimits(lease_ms=lease_ms)
        self.renewals: list[tuple[float, str]] = []
        self.reads = 0
        self.faults: list[Exception] = []
        self.cancel_requested = False
        self.record = RECORD

    async def renew(self, claim: Claim, client: str = "") -> Renewed:
        if self.faults:
            raise self.faults.pop(0)
        self.renewals.append((monotonic(), client))
        return Renewed(self.cancel_requested)

    async def get(self, job_id: str) -> JobRecord:
        self.reads += 1
        return self.record


RECORD = JobRecord(id="job", status="processing", fence=7, claim_id="c", owner_client="memory:1")
CLAIM = Claim(RECORD, 7, "c")


class Told:
    """A listener that notes."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.listener = Listener(
            cancelled=lambda: self.words.append("cancelled"), lost=lambda: self.words.append("lost")
        )


@asynccontextmanager
async def keeping(ledger: Ledger, signals: Any = None) -> AsyncGenerator[tuple[Keeper, Told], None]:
    keeper, told = Keeper(ledger, signals or Deaf(), Tally("m")), Told()  # pyright: ignore[reportArgumentType]  as much as it uses
    task = asyncio.create_task(keeper.run())
    _ = await eventually(lambda: keeper.client)
    keeper.hold(CLAIM, told.listener)
    try:
        yield keeper, told
    finally:
        _ = task.cancel()
        _ = await asyncio.wait({task})


async def test_the_lease_is_renewed_every_third_of_it_and_only_read_in_between() -> None:
    ledger = Ledger(lease_ms=9_000)
    async with keeping(ledger):
        began = monotonic()
        _ = await eventually(lambda: len(ledger.renewals) >= 2, within=10)
    first, second = (moment for moment, _ in ledger.renewals[:2])
    assert 2.5 < first - began < 4.5
    assert 2.5 < second - first < 4.5
    assert ledger.reads >= 3


async def test_a_short_lease_is_renewed_before_it_ends() -> None:
    ledger = Ledger(lease_ms=1_000)
    async with keeping(ledger):
        began = monotonic()
        _ = await eventually(lambda: len(ledger.renewals) >= 3, within=5)
    assert ledger.renewals[2][0] - began < 2


@requirement("death:reconnect:owner-keeps-its-job")
async def test_a_new_connection_is_registered_at_once() -> None:
    class Reconnecting:
        def __init__(self) -> None:
            self.cut = asyncio.Event()

        async def cancels(self, model: str, on_connected: Callable[[str], None]) -> AsyncIterator[str]:
            on_connected("memory:1")
            _ = await self.cut.wait()
            on_connected("memory:2")
            _ = await asyncio.Event().wait()
            yield ""

    ledger, signals = Ledger(lease_ms=60_000), Reconnecting()
    async with keeping(ledger, signals):
        _ = await eventually(lambda: ledger.reads)
        assert ledger.renewals == []
        signals.cut.set()
        _ = await eventually(lambda: ledger.renewals, within=0.5)
    assert [client for _, client in ledger.renewals] == ["memory:2"]


async def test_a_claim_made_before_the_subscription_stood_is_registered_at_once() -> None:
    ledger = Ledger(lease_ms=60_000)
    keeper, told = Keeper(ledger, Deaf("memory:9"), Tally("m")), Told()  # pyright: ignore[reportArgumentType]
    task = asyncio.create_task(keeper.run())
    keeper.hold(Claim(RECORD, 7, "c"), told.listener)
    _ = await eventually(lambda: ledger.renewals, within=0.5)
    assert ledger.renewals[0][1] == "memory:9"
    _ = task.cancel()
    _ = await asyncio.wait({task})


async def test_a_fault_of_redis_is_outlived_and_a_refusal_is_told_once() -> None:
    ledger = Ledger(lease_ms=300)
    async with keeping(ledger) as (_, told):
        ledger.faults = [BrokerUnavailable("away"), BrokerUnavailable("away"), TimeoutError()]
        _ = await eventually(lambda: len(ledger.renewals) >= 2, within=10)
        assert told.words == []
        ledger.faults = [ClaimLost("job")]
        _ = await eventually(lambda: told.words, within=5)
        renewals = len(ledger.renewals)
        _ = await eventually(lambda: monotonic() > 0)
    assert told.words == ["lost"]
    assert len(ledger.renewals) == renewals


async def test_a_record_that_shows_another_owner_is_asked_about_at_once() -> None:
    ledger = Ledger(lease_ms=60_000)
    ledger.record = JobRecord(id="job", status="processing", fence=8, claim_id="other")
    ledger.faults = [ClaimLost("job")]
    async with keeping(ledger) as (_, told):
        _ = await eventually(lambda: told.words, within=2)
    assert told.words == ["lost"]


async def test_a_requeued_job_is_looked_at_every_second_and_lost_when_another_claims_it() -> None:
    class Requeued(Ledger):
        async def renew(self, claim: Claim, client: str = "") -> Renewed:
            self.renewals.append((monotonic(), client))
            raise ClaimLost("job")

    ledger = Requeued(lease_ms=300)
    ledger.record = JobRecord(id="job", status="pending", fence=7, claim_id="c")
    async with keeping(ledger) as (_, told):
        _ = await eventually(lambda: len(ledger.renewals) >= 3, within=10)
        assert told.words == []
        assert ledger.renewals[2][0] - ledger.renewals[0][0] > 0.15, "no busy loop"
        ledger.record = JobRecord(id="job", status="processing", fence=8, claim_id="other")
        _ = await eventually(lambda: told.words, within=5)
    assert told.words == ["lost"]


async def test_after_let_go_a_refusal_is_nobodys_business() -> None:
    ledger = Ledger(lease_ms=60_000)
    reading = asyncio.Event()
    go_on = asyncio.Event()

    async def slow_renew(claim: Claim, client: str = "") -> Renewed:
        reading.set()
        _ = await go_on.wait()
        raise ClaimLost("job")

    ledger.renew = slow_renew
    ledger.record = JobRecord(id="job", status="completed", fence=7, claim_id="c")
    async with keeping(ledger) as (keeper, told):
        _ = await reading.wait()
        keeper.let_go()
        go_on.set()
        _ = await eventually(lambda: keeper.looked_at)
    assert told.words == []


async def test_signals_that_end_are_a_fault_and_not_silence() -> None:
    class Ending:
        async def cancels(self, model: str, on_connected: Callable[[str], None]) -> AsyncIterator[str]:
            on_connected("memory:1")
            yield "other"

    keeper = Keeper(Ledger(lease_ms=60_000), Ending(), Tally("m"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(BaseExceptionGroup) as caught:
        await asyncio.wait_for(keeper.run(), 5)
    assert "ended" in str(caught.value.exceptions[0])


# -- the thread ---------------------------------------------------------------------------------------------------


@requirement("lease:renew:owner-keeps-its-job")
async def test_the_thread_renews_while_the_main_loop_is_blocked() -> None:
    ledger = Ledger(lease_ms=300)

    async def opened() -> Keeper:
        return Keeper(ledger, Deaf(), Tally("m"))  # pyright: ignore[reportArgumentType]

    liveness = LivenessThread(opened, lambda _: None)
    assert await liveness.connected(5)
    assert liveness.client == "memory:1"
    liveness.hold(CLAIM, Told().listener)
    _ = threading.Event().wait(1.5)  # the main loop does nothing at all
    assert len(ledger.renewals) >= 5
    liveness.let_go()
    await liveness.aclose()


async def test_what_the_thread_hears_is_told_in_the_main_loop_and_not_after_let_go() -> None:
    ledger = Ledger(lease_ms=300)
    ledger.cancel_requested = True
    threads: list[int] = []

    async def opened() -> Keeper:
        return Keeper(ledger, Deaf(), Tally("m"))  # pyright: ignore[reportArgumentType]

    liveness = LivenessThread(opened, lambda _: None)
    _ = await liveness.connected(5)
    liveness.hold(CLAIM, Listener(lambda: threads.append(threading.get_ident()), lambda: None))
    _ = await eventually(lambda: threads)
    assert threads == [threading.get_ident()]

    liveness.hold(CLAIM, Listener(lambda: threads.append(0), lambda: None))
    _ = threading.Event().wait(0.5)  # heard by now, and not yet told
    liveness.let_go()
    await asyncio.sleep(0)
    assert 0 not in threads
    await liveness.aclose()


async def test_a_thread_that_ends_is_told_to_the_main_loop() -> None:
    async def opened() -> Keeper:
        raise ZeroDivisionError("a bug")

    broken: list[BaseException] = []
    liveness = LivenessThread(opened, broken.append)
    _ = await eventually(lambda: broken)
    assert isinstance(broken[0], ZeroDivisionError)
    assert not await liveness.connected(0.01)


async def test_a_bug_in_the_keeper_is_told_and_not_swallowed() -> None:
    ledger = Ledger(lease_ms=100)
    ledger.faults = [ZeroDivisionError("a bug")]

    async def opened() -> Keeper:
        return Keeper(ledger, Deaf(), Tally("m"))  # pyright: ignore[reportArgumentType]

    broken: list[BaseException] = []
    liveness = LivenessThread(opened, broken.append)
    _ = await liveness.connected(5)
    liveness.hold(CLAIM, Told().listener)
    _ = await eventually(lambda: broken)
    assert isinstance(broken[0], BaseExceptionGroup)
