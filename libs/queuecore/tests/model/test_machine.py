"""Any sequence of verbs, repeats, operators and time: Redis answers and ends like the specification."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from queuecore.broker import Breaker, Claim, Dedup, Failure, NewJob, Order, QueueLimits, Result, Reuse, Worker
from queuecore.errors import QueueCoreError
from queuecore.gates import Composite, Concurrency, Gate, Rate
from queuecore.job import TRANSITIONS, Status, Step, run_fields
from queuecore.redis.broker import RedisBroker
from queuecore.redis.client import Link
from queuecore.redis.keys import QueueKeys
from queuecore.redis.list_transport import ListBroker
from queuecore.redis.peeking import PeekingBroker
from queuecore.redis.records import scored
from queuecore.redis.sortedset_transport import SortedSetBroker
from queuecore.redis.stage_transport import StageBroker
from queuecore.redis.stream_transport import StreamBroker
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import ManualClock
from queuecore.testing.memory import MemoryBroker, MemoryQueue
from queuecore.testing.operator import MemoryOperator, Stand, operator_of
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess, redis7_binary

CHANGES = {(source, target) for _, source, target in TRANSITIONS}
LIMITS = QueueLimits(lease_ms=60_000, max_pending=4, max_reap_attempts=2, pending_max_age_ms=400_000)
IDS = ["j1", "j2", "j3", "j4", "j5"]
CAPPED = "acme"
GATE = Composite(
    (
        Concurrency("p:concurrent", "ratelimit:p:running", 2),
        Rate("p:requests", "ratelimit:p", 4, 60_000),
        Rate("p:tokens", "ratelimit:p", 100, 30_000, 40, ":tokens"),
    )
)
T = TypeVar("T")


class QueueMachine(RuleBasedStateMachine):
    """Every rule does the same to both and compares what they answer, then where everything stands."""

    server: ClassVar[ValkeyProcess]
    order: ClassVar[Order]
    fair: ClassVar[bool]
    gate: ClassVar[Gate | None]
    claims: Bundle[tuple[Claim, Claim] | None] = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        queue = MemoryQueue(self.clock)
        limits = LIMITS._replace(order=self.order, fair_share=self.fair, gate=self.gate)
        self.ledger = queue.ledger
        self.memory = Stand(queue.broker("m", limits), MemoryOperator(queue, "m"), self.clock)
        self.link = Link(CommonSettings(redis_url=Secret(self.server.url)), name="machine")
        self.redis = stand_of(self.link, limits, self.clock)
        self.run(self.link.call("FLUSHALL"))
        self.serial = 0
        self.revived = 0
        self.statuses: dict[str, tuple[int, str]] = {}

    def teardown(self) -> None:
        self.run(self.link.aclose())
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def both(self, act: Callable[[Stand], Awaitable[T]], *, repeat: bool = False) -> tuple[T, T] | None:
        """The same on both; a repeat is what a caller does whose reply was lost. None when both refuse."""
        answers: list[object] = []
        values: list[T] = []
        for stand in (self.memory, self.redis):
            for turn in range(1 + repeat):
                try:
                    value = self.run(_awaited(act(stand)))
                except QueueCoreError as error:
                    answers.append((type(error).__name__, str(error)))
                else:
                    answers.append(_plain(value))
                    values += [value] if turn == repeat else []
        half = len(answers) // 2
        assert answers[:half] == answers[half:], f"memory {answers[:half]}, redis {answers[half:]}"
        return (values[0], values[1]) if len(values) == 2 else None

    # -- clients --------------------------------------------------------------------------------------------------

    @rule(
        job_id=st.sampled_from(IDS),
        first=st.booleans(),
        delay=st.sampled_from([None, None, 30_000]),
        deadline=st.sampled_from([None, None, 90_000]),
        key=st.sampled_from(["", "", "k"]),
        tokens=st.sampled_from([{}, {"tokens_estimate": "10"}, {"tokens_estimate": "90"}]),
        item=st.sampled_from(["", "", "u", "force", "result", "fresh"]),
        repeat=st.booleans(),
    )
    def submit(
        self,
        job_id: str,
        delay: int | None,
        deadline: int | None,
        key: str,
        tokens: dict[str, str],
        *,
        item: str,
        first: bool,
        repeat: bool,
    ) -> None:
        now = self.clock()
        new = NewJob(
            id=job_id,
            fields={"params": '{"a": []}', "tenant": CAPPED if job_id in IDS[::2] else "other"} | tokens,
            priority=self.memory.first if first else self.memory.usual,
            not_before=None if delay is None else now + delay,
            deadline=None if deadline is None else now + deadline,
            ordering_key=key,
            dedup=Dedup("u", 70_000, force=item == "force") if item in {"u", "force"} else None,
            reuse=Reuse("cache:e:p", 70_000, fresh=item == "fresh") if item in {"result", "fresh"} else None,
            tenant_cap=2 if job_id in IDS[::2] else None,
        )
        _ = self.both(lambda stand: stand.broker.submit(new), repeat=repeat)

    @rule(job_id=st.sampled_from(IDS), repeat=st.booleans())
    def cancel(self, job_id: str, *, repeat: bool) -> None:
        _ = self.both(lambda stand: stand.broker.cancel(job_id), repeat=repeat)

    # -- workers --------------------------------------------------------------------------------------------------

    @rule(target=claims, client=st.sampled_from(["", "run:1", "run:2"]))
    def claim(self, client: str) -> tuple[Claim, Claim] | None:
        self.serial += 1
        claim_id = f"c{self.serial}"
        if isinstance(self.redis.broker, PeekingBroker):
            self.redis.broker._refused.clear()  # what it remembers of refusals goes by the real clock
        pair = self.both(lambda stand: stand.broker.claim(Worker("w", client), claim_id))
        return pair if pair and pair[0] and pair[1] else None  # pyright: ignore[reportReturnType]

    @rule(pair=claims, client=st.sampled_from(["", "run:3"]))
    def renew(self, pair: tuple[Claim, Claim] | None, client: str) -> None:
        if pair:
            lapsed = self.run(self.memory.broker.get(pair[0].job_id)) if self.gate else None
            _ = self.both(lambda stand: stand.broker.renew(self.of(stand, pair), client))
            self.revived += lapsed is not None and (lapsed.lease_until or 0) <= self.clock()

    @rule(pair=claims, tokens=st.sampled_from([None, 10, 70]), repeat=st.booleans())
    def complete(self, pair: tuple[Claim, Claim] | None, tokens: int | None, *, repeat: bool) -> None:
        if pair:
            result = Result(
                f"{pair[0].job_id}/{pair[0].fence}-{pair[0].claim_id}/result", 3, "text/plain", "0" * 64, 200, tokens
            )
            _ = self.both(lambda stand: stand.broker.complete(self.of(stand, pair), result), repeat=repeat)

    @rule(pair=claims, retry=st.sampled_from([None, 20_000]), infrastructure=st.booleans(), repeat=st.booleans())
    def fail(self, pair: tuple[Claim, Claim] | None, retry: int | None, *, infrastructure: bool, repeat: bool) -> None:
        if pair:
            failure = Failure("inference_error", "no", 503, retry, infrastructure, Breaker(2, 30_000))
            _ = self.both(lambda stand: stand.broker.fail(self.of(stand, pair), failure), repeat=repeat)

    @rule(pair=claims, repeat=st.booleans())
    def release(self, pair: tuple[Claim, Claim] | None, *, repeat: bool) -> None:
        if pair:
            _ = self.both(lambda stand: stand.broker.release(self.of(stand, pair)), repeat=repeat)

    @rule(pair=consumes(claims), gap=st.sampled_from([0, 60_001]))
    def die(self, pair: tuple[Claim, Claim] | None, gap: int) -> None:
        """A worker forgets its claim; perhaps its lease lapses."""
        assert pair is None or pair[0].job_id == pair[1].job_id
        self.clock.advance(gap)

    def of(self, stand: Stand, pair: tuple[Claim, Claim]) -> Claim:
        return pair[0] if stand is self.memory else pair[1]

    # -- upkeep ---------------------------------------------------------------------------------------------------

    @rule()
    def reap(self) -> None:
        _ = self.both(lambda stand: _sorted(stand.broker.reap()))

    @rule(nth=st.integers(0, 2))
    def reap_dead(self, nth: int) -> None:
        pair = self.both(lambda stand: _sorted(stand.broker.owners()))
        if pair and nth < len(pair[0]):
            owned = pair[0][nth]
            _ = self.both(lambda stand: stand.broker.reap_dead(owned, "its connection closed"))

    @rule(grace=st.sampled_from([0, 5_000]))
    def revoke(self, grace: int) -> None:
        _ = self.both(lambda stand: _sorted(stand.broker.revoke(grace_ms=grace)))

    @rule()
    def expire(self) -> None:
        _ = self.both(lambda stand: _sorted(stand.broker.expire()))

    @rule()
    def promote(self) -> None:
        _ = self.both(lambda stand: stand.broker.promote())

    @rule()
    def sweep(self) -> None:
        _ = self.both(lambda stand: _sorted(stand.broker.sweep()))

    @rule()
    def reconcile(self) -> None:
        _ = self.both(lambda stand: _sorted(stand.broker.reconcile()))

    @rule(milliseconds=st.sampled_from([1, 5_000, 20_000, 31_000, 60_001]))
    def time_passes(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    # -- operators ------------------------------------------------------------------------------------------------

    @rule()
    def pause(self) -> None:
        _ = self.both(lambda stand: stand.broker.pause())

    @rule()
    def resume(self) -> None:
        _ = self.both(lambda stand: stand.broker.resume())

    @rule()
    def purge(self) -> None:
        _ = self.both(lambda stand: stand.broker.purge())

    @rule(job_id=st.sampled_from(IDS), generation=st.sampled_from([None, 1, 2]))
    def redrive(self, job_id: str, generation: int | None) -> None:
        _ = self.both(lambda stand: stand.broker.redrive(job_id, generation=generation), repeat=generation is not None)

    @rule(job_id=st.sampled_from(IDS))
    def drop(self, job_id: str) -> None:
        _ = self.both(lambda stand: stand.broker.drop(job_id))

    @precondition(lambda self: not self.fair)  # an entry that was moved by hand is filed under no tenant
    @rule()
    def operator_moves_back(self) -> None:
        held = self.run(self.memory.operator.places()).processing
        if held:
            _ = self.both(lambda stand: stand.operator.move_back(held[-1]))

    @rule()
    def operator_removes_a_running_entry(self) -> None:
        held = self.run(self.memory.operator.places()).processing
        if held:
            _ = self.both(lambda stand: stand.operator.remove(held[0]))

    @precondition(lambda self: not self.fair)
    @rule()
    def foreign_relay_pops(self) -> None:
        _ = self.both(lambda stand: stand.operator.pop())

    @rule(lives=st.booleans())
    def foreign_relay_sets_or_loses_its_lease(self, *, lives: bool) -> None:
        held = self.run(self.memory.operator.places()).processing
        if held and lives:
            _ = self.both(lambda stand: stand.operator.set_lease(held[-1], 10**9))
        elif held:
            _ = self.both(lambda stand: stand.operator.delete_lease(held[-1]))

    @rule(job_id=st.sampled_from(IDS))
    def foreign_verdict(self, job_id: str) -> None:
        _ = self.both(lambda stand: stand.broker.complete_foreign(job_id, Status.COMPLETED, result_key=f"{job_id}/r"))

    @rule()
    def server_forgets_its_scripts(self) -> None:
        assert self.run(self.link.call("SCRIPT", "FLUSH")) in {"OK", True}

    # -- what must be equal ---------------------------------------------------------------------------------------

    @invariant()
    def everything_stands_in_the_same_place(self) -> None:
        memory, redis = self.run(self.memory.operator.places()), self.run(self.redis.operator.places())
        if self.order != "arrival":  # who claimed first does not matter there
            memory = memory._replace(processing=sorted(memory.processing))
            redis = redis._replace(processing=sorted(redis.processing))
        assert memory == redis
        assert self.run(self.memory.broker.counts()) == self.run(self.redis.broker.counts())
        ours, theirs = self.run(self.memory.broker.jobs()).jobs, self.run(self.redis.broker.jobs()).jobs
        assert ours == list(map(_comparable, theirs))

    @invariant()
    def gates_have_counted_the_same(self) -> None:
        assert self.run(ledger_of(self.link)) == (
            {key: window.count for key, window in self.ledger.windows.items()},
            {key: held for key, held in self.ledger.slots.items() if held},
            {key: due for key, due in self.ledger.waiting.items() if due},
        )
        running = [until for until in self.ledger.slots.get("ratelimit:p:running", {}).values() if until > self.clock()]
        assert len(running) <= 2 + self.revived, "only a lapsed lease that revives may be one too many"

    @invariant()
    def statuses_change_as_the_table_says(self) -> None:
        now = {one.id: (one.generation, one.status) for one in self.run(self.redis.broker.jobs()).jobs}
        for job_id, (_, status) in now.items():
            before = self.statuses.get(job_id)
            assert before is None or before[1] == status or (before[1], status) in CHANGES, (before, status)
        self.statuses = now

    @invariant()
    def tenants_have_the_same_turns(self) -> None:
        if not self.fair:
            return
        keys = QueueKeys("m")
        active, idle = self.run(
            self.link.pipeline([("ZRANGE", key, 0, -1, "WITHSCORES") for key in (keys.tenants, f"{keys.tenants}:idle")])
        )
        assert isinstance(self.memory.broker, MemoryBroker)
        state = self.memory.broker.specification.state
        assert dict(scored(active)) == state.tags
        assert dict(scored(idle)) == state.idle_tags

    @invariant()
    def a_live_job_is_never_in_two_places(self) -> None:
        places = self.run(self.redis.operator.places())
        waiting = [*places.pending, *places.processing, *places.paused, *places.delayed]
        assert len(waiting) == len(set(waiting))


class PipelineMachine(QueueMachine):
    """Two stages: runs are submitted to the first; every rule acts on the stage that is looked at, and all agree."""

    def __init__(self) -> None:
        super().__init__()
        assert isinstance(self.memory.broker, MemoryBroker)
        limits, queue = self.memory.broker.limits, self.memory.broker.queue
        second = Stand(queue.broker("n", limits), MemoryOperator(queue, "n"), self.clock)
        self.stages = [(self.memory, self.redis), (second, stand_of(self.link, limits, self.clock, "n"))]

    @rule(stage=st.sampled_from([0, 1]))
    def look_at(self, stage: int) -> None:
        self.memory, self.redis = self.stages[stage]

    @rule(
        job_id=st.sampled_from(IDS),
        first=st.booleans(),
        deadline=st.sampled_from([None, None, 90_000]),
        key=st.sampled_from(["", "", "k"]),
        repeat=st.booleans(),
    )
    def submit_run(self, job_id: str, deadline: int | None, key: str, *, first: bool, repeat: bool) -> None:
        steps = [Step("m", "op", "/v1/m", "raw"), Step("n", "op", "/v1/n", "json")]
        new = NewJob(
            id=job_id,
            fields={"tenant": "other", "input_key": f"{job_id}/input"} | run_fields("p", steps),
            priority="high" if first else "normal",
            deadline=None if deadline is None else self.clock() + deadline,
            ordering_key=key,
        )
        looked_at = self.memory, self.redis
        self.look_at(0)
        _ = self.both(lambda stand: stand.broker.submit(new), repeat=repeat)
        self.memory, self.redis = looked_at

    @rule(stage=st.sampled_from([0, 1]), repeat=st.booleans())
    def pass_on(self, stage: int, *, repeat: bool) -> None:
        """One run goes through this stage at once: by chance alone few come to the second."""
        self.look_at(stage)
        self.complete(self.claim(""), None, repeat=repeat)

    @precondition(lambda _: False)  # what is asked through another stage's queue is asked of runs
    @rule()
    def submit(self) -> None: ...

    @invariant()
    def everything_stands_in_the_same_place(self) -> None:
        looked_at = self.memory, self.redis
        for stage in (0, 1):
            self.look_at(stage)
            super().everything_stands_in_the_same_place()
        self.memory, self.redis = looked_at

    @invariant()
    def statuses_change_as_the_table_says(self) -> None:
        now = {one.id: one.status for _, redis in self.stages for one in self.run(redis.broker.jobs()).jobs}
        for job_id, status in now.items():
            before = self.statuses.get(job_id)
            assert before is None or before[1] == status or (before[1], status) in CHANGES, (before, status)
        self.statuses = {job_id: (0, status) for job_id, status in now.items()}

    @invariant()
    def a_live_job_is_never_in_two_places(self) -> None:
        places = [self.run(redis.operator.places()) for _, redis in self.stages]
        waiting = [job_id for one in places for ids in one[:4] for job_id in ids]
        assert len(waiting) == len(set(waiting))


async def ledger_of(link: Link) -> tuple[dict[str, int], dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Counters, slots and waiters that lie in Redis."""
    counters: dict[str, int] = {}
    slots: dict[str, dict[str, int]] = {}
    waiting: dict[str, dict[str, int]] = {}
    for key in await link.call("KEYS", "ratelimit:*"):
        if key.endswith(":slices"):
            continue
        if not key.endswith((":running", ":waiting")):
            counters[key] = int(await link.call("GET", key))
            continue
        members = scored(await link.call("ZRANGE", key, 0, -1, "WITHSCORES"))
        kind = slots if key.endswith(":running") else waiting
        kind[key] = {one.removesuffix(" m"): int(score) for one, score in members}
    return counters, slots, waiting


def stand_of(link: Link, limits: QueueLimits, clock: ManualClock, model: str = "m") -> Stand:
    """The transport that has this order."""
    kinds: dict[str, type[RedisBroker]] = {"arrival": ListBroker, "lanes": StreamBroker, "stage": StageBroker}
    broker = kinds.get(limits.order, SortedSetBroker)(link, model, limits, clock=clock)
    return Stand(broker, operator_of(broker.transport, link, model, clock), clock)


def _comparable(record: Any) -> Any:
    """Texts that only people read are not compared."""
    import msgspec

    return msgspec.structs.replace(
        record, error_message=record.error_message if record.error_code == "inference_error" else ""
    )


def _plain(value: object) -> object:
    return value._replace(record=_comparable(value.record)) if isinstance(value, Claim) else value


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _sorted(work: Awaitable[Any]) -> list[Any]:
    return sorted(await work)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("order", "fair", "kind", "gate"),
    [
        ("arrival", False, "valkey", None),
        ("lanes", False, "valkey", None),
        ("deadline", False, "valkey", None),
        ("priority", False, "valkey", None),
        ("stage", False, "valkey", None),
        ("deadline", True, "valkey", None),
        ("arrival", False, "redis7", None),
        ("lanes", False, "redis7", None),
        ("deadline", True, "redis7", None),
        ("stage", False, "redis7", None),
        ("arrival", False, "valkey", GATE),
        ("lanes", False, "valkey", GATE),
        ("priority", False, "valkey", GATE),
        ("stage", False, "valkey", GATE),
        ("deadline", True, "valkey", GATE),
        ("arrival", False, "redis7", GATE),
    ],
)
@requirement("contract:any:memory-and-redis-agree", "job:any:in-one-place")
def test_redis_answers_and_ends_like_the_specification(
    request: pytest.FixtureRequest, order: Order, kind: str, gate: Gate | None, *, fair: bool
) -> None:
    explore(QueueMachine, request, order, kind, gate, fair=fair)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["valkey", "redis7"])
@requirement("pipeline:any:memory-and-redis-agree")
def test_runs_of_a_pipeline_go_and_end_like_the_specifications(request: pytest.FixtureRequest, kind: str) -> None:
    explore(PipelineMachine, request, "stage", kind, None, fair=False)


def explore(
    machine: type[QueueMachine],
    request: pytest.FixtureRequest,
    order: Order,
    kind: str,
    gate: Gate | None,
    *,
    fair: bool,
) -> None:
    with ValkeyProcess(binary=redis7_binary() if kind == "redis7" else None) as server:
        machine.server, machine.order, machine.fair, machine.gate = server, order, fair, gate
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=int(str(request.config.getoption("--machine-examples"))),
                stateful_step_count=40,
                deadline=None,
                derandomize=True,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            ),
        )
