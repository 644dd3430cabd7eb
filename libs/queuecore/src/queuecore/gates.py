"""Whether a job may be claimed now: limits as pure steps on a ledger of counters, slots and waiters.

A ``Gate`` answers ``Admit``, ``Wait`` or ``Drop``; only a claim that every gate admits takes anything (G7). The scripts
do the same steps on Redis (``redis/lua/_include/gates.lua``), and the hypothesis machine compares the two.

A rate is a sliding window over the seed's two counters, the one of this window and the one of the window before. Beside
each counter lies how much of it came in which thirtieth of the window, and when the last of that came: so no window
of that length, wherever it begins, ever holds more than the limit, and nobody waits longer than a thirtieth of the
window beyond the exact time. What somebody else added to a counter is taken to be spread evenly over its window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SLICES: Final = 30
RESERVED_MS: Final = 10_000  # so long a waiter whose turn has come is ahead of jobs that never waited
ROUND_MS: Final = 60_000  # how long a slot is held, for the guess when the one after it comes free
FAULT_PAUSE_MS: Final = 5_000
_ROUNDING: Final = 1e-6


class GateFault(Exception):
    """A gate could not say: what it counts with is not what it wrote."""


class Admit(NamedTuple):
    """The claim may be taken."""


class Wait(NamedTuple):
    """Not before ``until_ms``. ``whole_queue``: nor may any other job of this queue."""

    until_ms: int
    gate: str
    whole_queue: bool = True
    waiting_key: str = ""  # where a job that was taken from its place waits for its turn
    fault: bool = False


class Drop(NamedTuple):
    """The job may never run: it fails with ``gate_dropped``."""

    reason: str


Verdict = Admit | Wait | Drop


@dataclass
class Window:
    """One counter, and what of it this product added: slice -> (amount, time of the last)."""

    count: int = 0
    slices: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Ledger:
    """What the gates of many queues share."""

    windows: dict[str, Window] = field(default_factory=dict)
    slots: dict[str, dict[str, int]] = field(default_factory=dict)  # key -> holder -> until ms
    waiting: dict[str, dict[str, int]] = field(default_factory=dict)  # key -> job id -> due ms
    spoilt: set[str] = field(default_factory=set)  # tests: keys that hold something else
    woken: list[str] = field(default_factory=list)  # waiters of any queue whose turn has come

    def copy(self) -> Ledger:
        """An independent copy."""
        return Ledger(
            {key: Window(one.count, dict(one.slices)) for key, one in self.windows.items()},
            {key: dict(one) for key, one in self.slots.items()},
            {key: dict(one) for key, one in self.waiting.items()},
            set(self.spoilt),
            list(self.woken),
        )

    def free(self, slot_key: str, holder: str, now_ms: int) -> None:
        """Give a slot back."""
        _ = self.slots.get(slot_key, {}).pop(holder, None)
        self.call_next(f"{slot_key}:waiting", now_ms)

    def call_next(self, waiting_key: str, now_ms: int) -> None:
        """Whoever waits longest there has its turn now."""
        waiting = self.waiting.get(waiting_key, {})
        ahead = sorted((due, job_id) for job_id, due in waiting.items() if due > now_ms)
        if ahead:
            waiting[ahead[0][1]] = now_ms
            self.woken.append(ahead[0][1])

    def correct(self, spent: Spent, actual: int, now_ms: int) -> None:
        """``actual`` was used where ``spent`` had been taken: the rest comes back, or the excess counts from now."""
        gate, excess = spent.gate, actual - spent.amount
        if excess > 0:
            gate.add(self, excess, now_ms)
            return
        window = self.windows.get(spent.counter_key)
        if window is None or spent.part not in window.slices:
            return  # its TTL ended while the job ran
        amount, last = window.slices[spent.part]
        back = min(-excess, amount, window.count)
        window.count -= back
        window.slices[spent.part] = amount - back, last
        self.call_next(gate.waiting_key, now_ms)


class Asking(NamedTuple):
    """Who asks, and when."""

    job_id: str
    now_ms: int
    tokens: int | None = None  # what the job says it may use; None: the gate's estimate
    first: bool = False  # a list's priority: it waits behind nobody


class Spent(NamedTuple):
    """Tokens that a claim took by estimate."""

    gate: Rate
    counter_key: str
    part: int
    amount: int


class Taken(NamedTuple):
    """What a claim holds: keys of its slots, and the tokens that are to be corrected."""

    slots: tuple[str, ...] = ()
    spent: tuple[Spent, ...] = ()


NOTHING: Final = Taken()


class Gate(ABC):
    """May this job be claimed now. ``parts`` are the gates it is made of, itself if it is simple."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[Gate]: ...

    @abstractmethod
    def verdict(self, ledger: Ledger, asking: Asking) -> Verdict:
        """What it says; nothing is taken.

        Raises:
            GateFault: it cannot say.
        """

    @abstractmethod
    def take(self, ledger: Ledger, asking: Asking, holder: str, until_ms: int) -> Taken:
        """What the claim of an admitted job takes; ``holder`` keeps its slots until ``until_ms``, and renews them."""

    @abstractmethod
    def described(self) -> Mapping[str, str | int]:
        """What the script needs of it."""


@dataclass(frozen=True)
class Constant(Gate):
    """Always the same: for a model that is closed, or whose jobs are to be refused."""

    label: str
    word: str = "admit"  # admit | wait | drop
    wait_ms: int = 60_000
    reason: str = ""

    @property
    def parts(self) -> Sequence[Gate]:
        return (self,)

    def verdict(self, ledger: Ledger, asking: Asking) -> Verdict:  # noqa: ARG002  it needs no ledger
        if self.word == "drop":
            return Drop(self.reason)
        return Wait(asking.now_ms + self.wait_ms, self.label) if self.word == "wait" else Admit()

    def take(self, ledger: Ledger, asking: Asking, holder: str, until_ms: int) -> Taken:  # noqa: ARG002  likewise
        return NOTHING

    def described(self) -> Mapping[str, str | int]:
        return {
            "kind": "constant", "label": self.label, "word": self.word, "wait_ms": self.wait_ms, "reason": self.reason
        }  # fmt: skip


@dataclass(frozen=True)
class Rate(Gate):
    """At most ``limit`` requests, or tokens if there is an ``estimate`` of them, in any window of ``window_ms``."""

    label: str
    key: str
    limit: int
    window_ms: int
    estimate: int = 0
    suffix: str = ""

    @property
    def parts(self) -> Sequence[Gate]:
        return (self,)

    @property
    def waiting_key(self) -> str:
        """Zset of those that wait for it."""
        return f"{self.key}{self.suffix}:waiting"

    def counter_key(self, at_ms: int) -> str:
        """The counter of the window in which ``at_ms`` lies, named by that window's begin in seconds."""
        return f"{self.key}:{at_ms // self.window_ms * self.window_ms // 1000}{self.suffix}"

    def cost(self, asking: Asking) -> int:
        """What a claim takes. A job that would need more than the limit runs when nothing else counts."""
        if not self.estimate:
            return 1
        return min(self.limit, max(1, self.estimate if asking.tokens is None else asking.tokens))

    def charges(self, ledger: Ledger, now_ms: int) -> list[tuple[int, float]]:
        """(when it leaves the window, amount) of everything that still counts, in that order.

        Raises:
            GateFault: a counter is no counter.
        """
        found: list[tuple[int, float]] = []
        start = now_ms - now_ms % self.window_ms
        for begin in (start - self.window_ms, start):
            key = self.counter_key(begin)
            if key in ledger.spoilt:
                raise GateFault(f"{key} is no counter")
            window = ledger.windows.get(key, Window())
            found += [(last + self.window_ms, amount) for amount, last in window.slices.values()]
            others = window.count - sum(amount for amount, _ in window.slices.values())
            if others > 0:
                parts = SLICES if begin < start else (now_ms - start) * SLICES // self.window_ms + 1
                found += [
                    (begin + part * self.window_ms // SLICES + self.window_ms, others / parts)
                    for part in range(1, parts + 1)
                ]
        return sorted(one for one in found if one[0] > now_ms and one[1] > 0)

    def opens_ms(self, charges: Sequence[tuple[int, float]], now_ms: int, need: int) -> int:
        """When ``need`` more fit in, if nothing else comes meanwhile."""
        rounds, rest = divmod(need - 1, self.limit)
        used, at = sum(amount for _, amount in charges), now_ms
        for leaves, amount in charges:
            if used + rest + 1 <= self.limit + _ROUNDING:
                break
            used, at = used - amount, leaves
        return at + rounds * self.window_ms

    def verdict(self, ledger: Ledger, asking: Asking) -> Verdict:
        charges = self.charges(ledger, asking.now_ms)
        used, cost = sum(amount for _, amount in charges), self.cost(asking)
        called, to_come = _ahead(ledger, self.waiting_key, asking)
        if used + cost * (1 + called) <= self.limit + _ROUNDING:
            return Admit()
        until = self.opens_ms(charges, asking.now_ms, cost * (1 + called + to_come))
        return Wait(until, self.label, used + 1 + called > self.limit + _ROUNDING, self.waiting_key)

    def add(self, ledger: Ledger, amount: int, now_ms: int) -> Spent:
        """Count ``amount`` from now on."""
        key, part = self.counter_key(now_ms), now_ms % self.window_ms * SLICES // self.window_ms
        window = ledger.windows.setdefault(key, Window())
        window.count += amount
        window.slices[part] = window.slices.get(part, (0, 0))[0] + amount, now_ms
        return Spent(self, key, part, amount)

    def take(self, ledger: Ledger, asking: Asking, holder: str, until_ms: int) -> Taken:  # noqa: ARG002  no slot
        _ = ledger.waiting.get(self.waiting_key, {}).pop(asking.job_id, None)
        spent = self.add(ledger, self.cost(asking), asking.now_ms)
        return Taken(spent=(spent,) if self.estimate else ())

    def described(self) -> Mapping[str, str | int]:
        return {
            "kind": "rate", "label": self.label, "key": self.key, "suffix": self.suffix, "waiting": self.waiting_key,
            "limit": self.limit, "window_ms": self.window_ms, "estimate": self.estimate,
        }  # fmt: skip


@dataclass(frozen=True)
class Concurrency(Gate):
    """At most ``limit`` claims at once. A slot is a lease: renewed with the claim's, and over with it."""

    label: str
    key: str
    limit: int

    @property
    def parts(self) -> Sequence[Gate]:
        return (self,)

    @property
    def waiting_key(self) -> str:
        """Zset of those that wait for it."""
        return f"{self.key}:waiting"

    def verdict(self, ledger: Ledger, asking: Asking) -> Verdict:
        if self.key in ledger.spoilt:
            raise GateFault(f"{self.key} is no zset")
        held = sorted(until for until in ledger.slots.get(self.key, {}).values() if until > asking.now_ms)
        called, to_come = _ahead(ledger, self.waiting_key, asking)
        if len(held) + 1 + called <= self.limit:
            return Admit()
        first = held[0] if held else asking.now_ms + 1_000
        return Wait(
            first + (called + to_come) // self.limit * ROUND_MS, self.label, waiting_key=self.waiting_key
        )  # fmt: skip

    def take(self, ledger: Ledger, asking: Asking, holder: str, until_ms: int) -> Taken:
        _ = ledger.waiting.get(self.waiting_key, {}).pop(asking.job_id, None)
        held = ledger.slots.setdefault(self.key, {})
        for other in [one for one, until in held.items() if until <= asking.now_ms]:
            del held[other]
        held[holder] = until_ms
        return Taken(slots=(self.key,))

    def described(self) -> Mapping[str, str | int]:
        return {
            "kind": "concurrency", "label": self.label, "key": self.key, "waiting": self.waiting_key,
            "limit": self.limit,
        }  # fmt: skip


@dataclass(frozen=True)
class Composite(Gate):
    """All of ``gates``: the first that drops decides, else the one that waits longest."""

    gates: tuple[Gate, ...]

    @property
    def parts(self) -> Sequence[Gate]:
        return tuple(_simple(self.gates))

    def verdict(self, ledger: Ledger, asking: Asking) -> Verdict:
        said: Verdict = Admit()
        for gate in self.parts:
            one = gate.verdict(ledger, asking)
            if isinstance(one, Drop):
                return one
            if isinstance(one, Wait) and not (isinstance(said, Wait) and said.until_ms >= one.until_ms):
                said = one
        return said

    def take(self, ledger: Ledger, asking: Asking, holder: str, until_ms: int) -> Taken:
        each = [gate.take(ledger, asking, holder, until_ms) for gate in self.parts]
        return Taken(
            tuple(key for taken in each for key in taken.slots), tuple(one for taken in each for one in taken.spent)
        )

    def described(self) -> Mapping[str, str | int]:
        raise TypeError("a composite is described by its parts")


def _simple(gates: Sequence[Gate]) -> Iterator[Gate]:
    for gate in gates:
        yield from gate.parts


def _ahead(ledger: Ledger, waiting_key: str, asking: Asking) -> tuple[int, int]:
    """Waiters whose turn has come, and those to come; none are ahead of a job that waits itself or goes first."""
    waiting = ledger.waiting.get(waiting_key, {})
    if asking.first or asking.job_id in waiting:
        return 0, 0
    called = sum(asking.now_ms - RESERVED_MS < due <= asking.now_ms for due in waiting.values())
    return called, sum(due > asking.now_ms for due in waiting.values())


def ask(gate: Gate, ledger: Ledger, asking: Asking) -> Verdict:
    """What the gate says; one that cannot say makes the job wait (design §10.10)."""
    try:
        return gate.verdict(ledger, asking)
    except GateFault as fault:
        return Wait(asking.now_ms + FAULT_PAUSE_MS, str(fault), whole_queue=False, fault=True)
