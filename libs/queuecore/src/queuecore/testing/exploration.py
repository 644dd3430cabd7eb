"""All interleavings of workers, reapers, an operator and a client over the executable specification.

A breadth-first search over states of (queue, workers, reapers, budgets). One transition is one script, one Redis
command or one step of a process. Time is not modelled: a lease may lapse at any moment at which no running owner that
believes in its claim keeps it alive, and a grace is over whenever nobody that would act within it is running.
Budgets bound the adversary: how often a process dies, stalls, loses a reply, …. The guarantees are checked in every
state, and from every state a way that needs no adversary must lead to the end of all jobs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from queuecore.broker import NewJob, Order, QueueLimits
from queuecore.gates import Concurrency
from queuecore.job import Status
from queuecore.testing.specification import Specification, State

NOW: Final = 1_000_000
LIMITS: Final = QueueLimits(lease_ms=1_000, max_reap_attempts=1)


class Worker(NamedTuple):
    """``step`` is what it will do next; ``connection`` is the incarnation of its liveness connection."""

    step: str = "idle"  # idle popped (or peeked) running stored retrying releasing unclaiming cancelling
    job: str = ""
    fence: int = 0
    claim_id: str = ""
    serial: int = 0  # claims it has begun, so that every claim_id is new
    renewing: bool = False
    stopped: bool = False
    connection: int = 1
    registered: int = 0  # the connection that the job's record names


class Ghost(NamedTuple):
    """What clients were told of a job, for the properties of time."""

    told_cancelled: bool = False
    cancel_accepted: bool = False


Reading = tuple[str, str, str, int, str] | None  # a reaper's last sight: kind, job, client, fence, claim_id


@dataclass
class World:
    """One state of the search."""

    queue: State
    workers: list[Worker]
    readings: list[Reading]
    ghosts: dict[str, Ghost]
    budget: dict[str, int]

    def copy(self) -> World:
        """An independent copy."""
        return World(self.queue.copy(), list(self.workers), list(self.readings), dict(self.ghosts), dict(self.budget))

    def key(self) -> tuple[object, ...]:
        """Everything that can matter later, hashable."""
        queue = self.queue
        jobs = tuple(
            (
                one.status, one.generation, one.fence, one.claim_id, one.owner_client, bool(one.lease_until), one.reaps,
                one.failures, one.seq, one.entered, one.returned, one.return_to, one.cancel_requested, one.settled,
            )
            for one in queue.jobs.values()
        )  # fmt: skip
        return (
            jobs, tuple(queue.pending), tuple(queue.processing), tuple(queue.delayed), tuple(queue.deadletter),
            tuple(event.event_id for event in queue.outbox), tuple(queue.foreign_leases), tuple(queue.ordering.items()),
            tuple(map(tuple, queue.ordered.values())), tuple(self.workers), tuple(self.readings),
            tuple(self.ghosts.values()), tuple(self.budget.values()),
            tuple((key, tuple(sorted(held.items()))) for key, held in queue.ledger.slots.items()),
            tuple((key, tuple(sorted(due.items()))) for key, due in queue.ledger.waiting.items()),
        )  # fmt: skip


class Step(NamedTuple):
    """One transition; ``hostile`` ones need not happen."""

    label: str
    world: World
    hostile: bool = False


class Counterexample(NamedTuple):
    """The shortest trace to a broken guarantee."""

    guarantee: str
    trace: tuple[str, ...]


@dataclass
class Scenario:
    """What is explored: how many of whom, and what the adversary may do."""

    name: str
    jobs: int = 2
    workers: int = 2
    reapers: int = 2
    budget: dict[str, int] = field(default_factory=dict)
    ordering_key: str = ""
    foreign: bool = False
    reconciler: bool = False
    fast_death: bool = False
    order: Order = "arrival"
    slots: int = 0  # of a concurrency gate; 0: none
    make: Callable[[QueueLimits, State], Specification] = Specification

    @property
    def limits(self) -> QueueLimits:
        """Of the queue."""
        gate = Concurrency("slots", "running", self.slots) if self.slots else None
        return LIMITS._replace(order=self.order, gate=gate)

    def first(self) -> World:
        """Every job submitted, every process idle."""
        queue = State()
        specification = self.make(self.limits, queue)
        names = [f"j{number}" for number in range(self.jobs)]
        for name in names:
            _ = specification.submit(NewJob(id=name, fields={}, ordering_key=self.ordering_key), NOW)
        return World(
            queue,
            [Worker()] * self.workers,
            [None] * self.reapers,
            {name: Ghost() for name in names},
            dict(self.budget),
        )


class Explorer:
    """The search of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.states = 0

    def run(self, limit: int = 400_000) -> Counterexample | None:
        """The first counterexample, or None when there is none; ``RuntimeError`` past ``limit`` states."""
        first = self.scenario.first()
        worlds: list[World | None] = [first]
        index: dict[tuple[object, ...], int] = {first.key(): 0}
        parents: list[tuple[int, str]] = [(-1, "")]
        kind_edges: list[list[int]] = [[]]  # to whom a state leads without the adversary
        ends: list[int] = []
        queue: deque[int] = deque([0])

        def trace(number: int, last: str = "") -> tuple[str, ...]:
            labels = [last] if last else []
            while number > 0:
                number, label = parents[number]
                labels.append(label)
            return tuple(reversed(labels))

        while queue:
            number = queue.popleft()
            world = worlds[number]
            assert world is not None
            worlds[number] = None
            if _is_over(world):
                ends.append(number)
            for step in self.steps(world):
                broken = broken_guarantee(world, step.world) or broken_limit(step.world, self.scenario.slots)
                if broken:
                    self.states = len(index)
                    return Counterexample(broken, trace(number, step.label))
                key = step.world.key()
                known = index.get(key)
                if known is None:
                    known = len(worlds)
                    index[key] = known
                    worlds.append(step.world)
                    parents.append((number, step.label))
                    kind_edges.append([])
                    queue.append(known)
                    if known > limit:
                        raise RuntimeError(f"{self.scenario.name}: more than {limit} states")
                if not step.hostile:
                    kind_edges[number].append(known)
        self.states = len(index)
        stuck = _unable_to_end(kind_edges, ends)
        return Counterexample("G1: no way to the end of all jobs", trace(stuck)) if stuck is not None else None

    # -- transitions --------------------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[Step]:
        """Everything that can happen next."""
        for number in range(len(world.workers)):
            yield from self._worker(world, number)
        yield from self._time(world)
        for number in range(len(world.readings)):
            yield from self._reaper(world, number)
        yield from self._others(world)

    def _fork(self, world: World, spend: str = "") -> tuple[World, Specification]:
        made = world.copy()
        if spend:
            made.budget[spend] -= 1
        return made, self.scenario.make(self.scenario.limits, made.queue)

    def _worker(self, world: World, number: int) -> Iterator[Step]:
        me, name = world.workers[number], f"w{number}"
        can = world.budget.get

        def become(made: World, **changes: object) -> World:
            made.workers[number] = made.workers[number]._replace(**changes)
            return made

        def reborn(made: World) -> World:
            made.workers[number] = Worker(serial=me.serial, connection=me.connection + 1)
            return made

        if me.stopped:
            yield Step(f"{name} SIGCONT", become(self._fork(world)[0], stopped=False, renewing=False))
            return
        if me.step != "idle":
            if can("kill"):
                yield Step(f"{name} SIGKILL in {me.step}", reborn(self._fork(world, "kill")[0]), hostile=True)
            if can("stop"):
                made = become(self._fork(world, "stop")[0], stopped=True, renewing=False)
                yield Step(f"{name} SIGSTOP in {me.step}", made, hostile=True)
        if me.step == "idle":
            if world.queue.pending and self.scenario.order != "arrival":
                made, specification = self._fork(world)
                job = specification.peek() or ""
                serial = me.serial + 1
                made = become(made, step="popped", job=job, serial=serial, claim_id=f"{name}.{serial}")
                yield Step(f"{name} peeks at {job}", made)
            elif world.queue.pending:
                for lost in (False, True) if can("loss") else (False,):
                    made, specification = self._fork(world, "loss" if lost else "")
                    job = specification.pop() or ""
                    if not lost:
                        made = become(
                            made, step="popped", job=job, serial=me.serial + 1, claim_id=f"{name}.{me.serial + 1}"
                        )
                    yield Step(f"{name} BLMOVE {job}{', reply lost' * lost}", made, lost)
            return
        if me.step == "popped":
            yield from self._claim(world, number)
            return
        if me.step == "running":
            made, specification = self._fork(world)
            reply = specification.renew(me.job, me.fence, me.claim_id, NOW, client=f"{name}.{me.connection}")
            if reply[0] == "lost":
                yield Step(f"{name} renew refused, aborts", reborn(made))
            else:
                yield Step(f"{name} renews", become(made, renewing=True, registered=me.connection))
                if reply[1] == "1":
                    yield Step(f"{name} sees the cancel", become(self._fork(world)[0], step="cancelling"))
            yield Step(f"{name} has its result", become(self._fork(world)[0], step="stored"))
            for budget, step in (("retry", "retrying"), ("term", "releasing")):
                if can(budget):
                    yield Step(f"{name} {step}", become(self._fork(world, budget)[0], step=step), hostile=True)
            if can("cut") and me.registered == me.connection:
                made = become(self._fork(world, "cut")[0], connection=me.connection + 1)
                yield Step(f"{name}'s connection is cut", made, hostile=True)
            return
        for lost in (False, True) if can("loss") else (False,):
            made, specification = self._fork(world, "loss" if lost else "")
            label = self._settle(specification, me)
            made = become(made, renewing=False) if lost else reborn(made)
            yield Step(f"{name} {label} {me.job}{', reply lost' * lost}", made, lost)

    @staticmethod
    def _settle(specification: Specification, me: Worker) -> str:
        job, fence, claim_id = me.job, me.fence, me.claim_id
        if me.step == "stored":
            return f"complete -> {specification.complete(job, fence, claim_id, NOW)}"
        if me.step == "retrying":
            return f"fail, retry -> {specification.fail(job, fence, claim_id, NOW, retry_in_ms=0)}"
        if me.step == "cancelling":
            return f"fail, cancelled -> {specification.fail(job, fence, claim_id, NOW)}"
        if me.step == "unclaiming":
            return f"release, unclaimed -> {specification.release(job, '', '', NOW)}"
        return f"release -> {specification.release(job, fence, claim_id, NOW)}"

    def _claim(self, world: World, number: int) -> Iterator[Step]:
        me, name = world.workers[number], f"w{number}"
        for lost in (False, True) if world.budget.get("loss") else (False,):
            made, specification = self._fork(world, "loss" if lost else "")
            word = specification.claim(me.job, me.claim_id, NOW, client=f"{name}.{me.connection}")
            if not lost and word == "claimed":
                made.workers[number] = me._replace(
                    step="running", fence=made.queue.jobs[me.job].fence, renewing=True, registered=me.connection
                )
            elif not lost:
                # A refused claim leaves no trace: its id may come again, or refusals would make states without end.
                made.workers[number] = Worker(serial=me.serial - (word == "waiting"), connection=me.connection)
            yield Step(f"{name} claim {me.job} -> {word}{', reply lost' * lost}", made, lost)
        if world.budget.get("term"):
            made, specification = self._fork(world, "term")
            made.workers[number] = me._replace(step="unclaiming")
            if specification.peeks:
                made.workers[number] = Worker(serial=me.serial, connection=me.connection)
            yield Step(f"{name} SIGTERM before its claim", made, hostile=True)

    def _time(self, world: World) -> Iterator[Step]:
        for name, job in world.queue.jobs.items():
            if job.lease_until and not any(_keeps_alive(one, name, job.fence) for one in world.workers):
                made, _ = self._fork(world)
                made.queue.jobs[name].lease_until = None
                for key in job.taken.slots:
                    made.queue.ledger.slots[key][f"{name}:{job.fence}"] = NOW
                yield Step(f"lease of {name} lapses", made)
            if name in world.queue.foreign_leases:
                made, _ = self._fork(world)
                del made.queue.foreign_leases[name]
                yield Step(f"foreign lease of {name} lapses", made)
        if world.queue.delayed:
            made, specification = self._fork(world)
            made.queue.delayed = dict.fromkeys(made.queue.delayed, NOW)
            _ = specification.promote(NOW)
            yield Step("promote", made)

    def _reaper(self, world: World, number: int) -> Iterator[Step]:
        reading = world.readings[number]
        if reading is None:
            for name in dict.fromkeys(world.queue.processing):
                job = world.queue.jobs[name]
                specification = Specification(LIMITS, world.queue)
                if not specification.lease_is_live(job, NOW) or job.terminal:
                    yield self._read(world, number, ("lease", name, "", 0, ""))
                elif job.status is Status.PENDING:
                    yield self._read(world, number, ("adopt", name, "", 0, ""))
                if self.scenario.fast_death and job.status is Status.PROCESSING and _is_gone(world, job.owner_client):
                    yield self._read(world, number, ("death", name, job.owner_client, job.fence, job.claim_id))
            return
        kind, name, client, fence, claim_id = reading
        made, specification = self._fork(world)
        made.readings[number] = None
        if self._within_grace(world, reading):
            yield Step(f"r{number} waits for {name}", made)
            return
        if kind == "death":
            word = specification.reap(name, NOW, grace_ms=0, client=client, fence=fence, claim_id=claim_id)
        else:
            word = specification.reap(name, NOW, grace_ms=0)
        yield Step(f"r{number} reap {name} ({kind}) -> {word}", made)

    def _read(self, world: World, number: int, reading: Reading) -> Step:
        made, _ = self._fork(world)
        made.readings[number] = reading
        return Step(f"r{number} sees {reading}", made)

    @staticmethod
    def _within_grace(world: World, reading: Reading) -> bool:
        """Whether somebody who runs would act before the reaper may: claim what it popped, or register anew."""
        assert reading is not None
        kind, name, _, fence, _ = reading
        job = world.queue.jobs[name]
        if kind == "lease" and job.status is Status.PENDING:
            return any(one.step == "popped" and one.job == name and not one.stopped for one in world.workers)
        if kind == "death":
            return any(
                one.job == name
                and not one.stopped
                and (one.step == "popped" or (one.fence == fence and one.registered != one.connection))
                for one in world.workers
            )
        return False

    def _others(self, world: World) -> Iterator[Step]:
        can = world.budget.get
        if can("cancel"):
            for name in world.queue.jobs:
                made, specification = self._fork(world, "cancel")
                reply = specification.cancel(name, NOW)
                told = reply[0] == "cancelled"
                made.ghosts[name] = Ghost(
                    world.ghosts[name].told_cancelled or told,
                    world.ghosts[name].cancel_accepted or told or reply[0] == "processing",
                )
                yield Step(f"client cancels {name} -> {reply}", made, hostile=True)
        if can("move") and world.queue.processing:
            made, specification = self._fork(world, "move")
            specification.move_back()
            yield Step("operator LMOVE processing pending", made, hostile=True)
        if can("remove"):
            for name in dict.fromkeys(world.queue.processing):
                made, _ = self._fork(world, "remove")
                made.queue.processing.remove(name)
                yield Step(f"operator LREM {name}", made, hostile=True)
        if self.scenario.foreign and can("foreign") and world.queue.pending:
            made, specification = self._fork(world, "foreign")
            name = specification.pop() or ""
            made.queue.foreign_leases[name] = NOW + 1
            yield Step(f"foreign relay takes {name}", made, hostile=True)
        for name in list(world.queue.foreign_leases):
            made, specification = self._fork(world)
            word = specification.complete(name, "", "foreign", NOW)
            if word == "lost":
                _ = made.queue.foreign_leases.pop(name, None)
            yield Step(f"foreign relay completes {name} -> {word}", made)
        if self.scenario.reconciler:
            for name in world.queue.jobs:
                if any(one.job == name and not one.stopped and one.step != "idle" for one in world.workers):
                    continue  # two sights 30 s apart: who runs acts in between
                made, specification = self._fork(world)
                word = specification.reconcile(name, NOW, grace_ms=0)
                if word not in {"ok", "live"}:
                    yield Step(f"reconcile {name} -> {word}", made)


def _keeps_alive(worker: Worker, job: str, fence: int) -> bool:
    return worker.job == job and worker.fence == fence and worker.renewing and not worker.stopped


def _is_gone(world: World, client: str) -> bool:
    return bool(client) and client not in {f"w{number}.{one.connection}" for number, one in enumerate(world.workers)}


def _is_over(world: World) -> bool:
    queue = world.queue
    return (
        all(job.terminal for job in queue.jobs.values())
        and not (queue.pending or queue.processing or queue.delayed or queue.ordered or queue.foreign_leases)
        and all(one.step == "idle" for one in world.workers)
    )


def _unable_to_end(edges: list[list[int]], ends: list[int]) -> int | None:
    """A state from which no end can be reached without the adversary."""
    back: list[list[int]] = [[] for _ in edges]
    for source, targets in enumerate(edges):
        for target in targets:
            back[target].append(source)
    able, todo = set(ends), list(ends)
    while todo:
        for source in back[todo.pop()]:
            if source not in able:
                able.add(source)
                todo.append(source)
    return next((number for number in range(len(edges)) if number not in able), None)


def broken_guarantee(before: World, after: World) -> str:
    """What of G1-G9 this transition breaks, or ""."""
    queue = after.queue
    for name, job in queue.jobs.items():
        places = queue.pending.count(name) + queue.processing.count(name) + (name in queue.delayed)
        places += sum(ids.count(name) for ids in queue.ordered.values())
        events = sum(event.event_id == f"{name}:{job.generation}" for event in queue.outbox)
        was = before.queue.jobs[name]
        if places > 1:
            return f"G1: {name} stands in {places} places"
        if not job.terminal and places == 0 and not _was_removed(before, after, name):
            return f"G1: {name} is live and stands nowhere"
        if job.terminal and places:
            return f"G3: {name} is terminal and still queued"
        if events != int(job.terminal):
            return f"G9: {name} is {job.status} with {events} events"
        if was.terminal and job.status is not was.status:
            return f"G3: {name} was {was.status} and is {job.status}"
        if job.reaps > LIMITS.max_reap_attempts + 1 or (job.reaps > LIMITS.max_reap_attempts and not job.terminal):
            return f"G6: {name} was redelivered {job.reaps} times"
        if after.ghosts[name].told_cancelled and job.status is not Status.CANCELLED:
            return f"G8: {name} was told cancelled and is {job.status}"
        if after.ghosts[name].cancel_accepted and job.terminal and job.status is not Status.CANCELLED:
            return f"G8: the cancel of {name} was accepted and it is {job.status}"
        owners = [one for one in after.workers if one.job == name and one.renewing and not one.stopped]
        if len(owners) > 1:
            return f"G2: {name} has {len(owners)} live owners"
        for one in owners:
            if one.step in {"running", "stored"} and (
                job.status is Status.PENDING or (job.status is Status.PROCESSING and job.fence != one.fence)
            ):
                return f"G2: {name} was taken from its live owner"
        if job.fence < was.fence:
            return f"G4: the fence of {name} went back"
    heads = [queue.jobs[name] for name in queue.pending if queue.jobs[name].returned]
    operated = "move" in after.budget or "remove" in after.budget  # then the order is the operator's
    if not operated and [one.seq for one in heads] != sorted(one.seq for one in heads):
        return "G5: redelivered jobs are out of order"
    return _stale_effect(before, after)


def broken_limit(world: World, limit: int) -> str:
    """What of a concurrency gate's promise does not hold, or ""."""
    live = [holder for held in world.queue.ledger.slots.values() for holder, until in held.items() if until > NOW]
    for holder in live:
        name, _, fence = holder.rpartition(":")
        job = world.queue.jobs[name]
        if job.status is not Status.PROCESSING or job.fence != int(fence):
            return f"G7: {name} keeps a slot that no claim holds"
    return f"G7: {len(live)} hold one of {limit} slots" if limit and len(live) > limit else ""


def _was_removed(before: World, after: World, name: str) -> bool:
    """An operator removed the entry, and reconcile has not looked yet."""
    removed = "remove" in after.budget and after.budget["remove"] < before.budget["remove"]
    stood = name in before.queue.processing or name in before.queue.pending or name in before.queue.delayed
    return removed or not stood


def _stale_effect(before: World, after: World) -> str:
    """G4: a worker that settled with a claim that was not current changed the job."""
    for number, was in enumerate(before.workers):
        if was.step not in {"stored", "retrying", "releasing", "cancelling"} or after.workers[number] == was:
            continue
        old, new = before.queue.jobs[was.job], after.queue.jobs[was.job]
        current = (old.fence, old.claim_id) == (was.fence, was.claim_id)
        if not current and replace(old) != new:
            return f"G4: a stale claim changed {was.job}"
    return ""
