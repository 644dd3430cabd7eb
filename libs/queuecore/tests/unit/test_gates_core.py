"""The gates themselves: whatever comes, no window holds more than the limit, and nobody waits much longer than it must."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queuecore.config import parse_config
from queuecore.errors import ConfigurationError
from queuecore.gates import (
    SLICES,
    Admit,
    Asking,
    Composite,
    Concurrency,
    Constant,
    Drop,
    Gate,
    Ledger,
    Rate,
    Verdict,
    Wait,
    ask,
)
from queuecore.testing.requirement import requirement

WINDOW = 60_000
START = 1_800_000_000_000
MODEL = "models: {m: {service_type: chat, operations: {x: /x}, gates: GATES}}"


def run(gate: Gate, gaps_and_costs: list[tuple[int, int]]) -> list[tuple[int, int, Verdict]]:
    """(time, cost, verdict) of jobs that ask one after another; the admitted ones take."""
    ledger, now, found = Ledger(), START, list[tuple[int, int, Verdict]]()
    for number, (gap, cost) in enumerate(gaps_and_costs):
        now += gap
        asking = Asking(f"j{number}", now, cost)
        said = gate.verdict(ledger, asking)
        if isinstance(said, Admit):
            _ = gate.take(ledger, asking, f"j{number}:1", now + 1_000)
        found.append((now, cost, said))
    return found


arrivals = st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 30)), min_size=1, max_size=60)


@given(arrivals, st.integers(1, 12))
@requirement("gate:rate:sliding-window")
def test_no_window_holds_more_than_the_limit_and_nobody_waits_a_part_of_it_too_long(
    arrivals: list[tuple[int, int]], limit: int
) -> None:
    taken: list[int] = []
    for now, _, said in run(Rate("r", "k", limit, WINDOW), arrivals):
        inside = [at for at in taken if at > now - WINDOW]
        assert len(inside) <= limit
        if isinstance(said, Admit):
            assert len(inside) < limit
            taken.append(now)
        else:
            assert isinstance(said, Wait)
            exact = max(now, sorted(taken)[-limit] + WINDOW) if len(taken) >= limit else now
            assert exact <= said.until_ms <= exact + WINDOW // SLICES + 1
            assert said.until_ms > now


@given(arrivals, st.integers(10, 60))
def test_the_same_holds_for_tokens(arrivals: list[tuple[int, int]], limit: int) -> None:
    gate = Rate("r", "k", limit, WINDOW, 5, ":tokens")
    taken: list[tuple[int, int]] = []
    for now, cost, said in run(gate, arrivals):
        inside = sum(amount for at, amount in taken if at > now - WINDOW)
        assert inside <= limit
        if isinstance(said, Admit):
            taken.append((now, min(cost, limit)))
        else:
            late = sum(amount for at, amount in taken if at > now - WINDOW - WINDOW // SLICES - 1)
            assert late + min(cost, limit) > limit, "an exact log would have let it through a part of a window ago"


@given(arrivals, st.integers(1, 12))
@example([(0, 1)] * 13, 12)
def test_who_comes_back_when_it_was_told_is_let_through(arrivals: list[tuple[int, int]], limit: int) -> None:
    gate, ledger, now = Rate("r", "k", limit, WINDOW), Ledger(), START
    for number, (gap, _) in enumerate(arrivals):
        now += gap
        said = gate.verdict(ledger, Asking(f"j{number}", now))
        if isinstance(said, Wait):
            now = said.until_ms
            assert gate.verdict(ledger, Asking(f"j{number}", now - 1)) != Admit()
            assert gate.verdict(ledger, Asking(f"j{number}", now)) == Admit()
        _ = gate.take(ledger, Asking(f"j{number}", now), "h", now)


def test_those_that_wait_are_spread_over_the_windows_to_come() -> None:
    gate, ledger = Rate("r", "k", 10, WINDOW), Ledger()
    dues: list[int] = []
    for number in range(45):
        said = gate.verdict(ledger, Asking(f"j{number}", START))
        if isinstance(said, Wait):
            ledger.waiting.setdefault(said.waiting_key, {})[f"j{number}"] = said.until_ms
            dues.append((said.until_ms - START) // WINDOW)
        else:
            _ = gate.take(ledger, Asking(f"j{number}", START), "h", START)
    assert dues == [1] * 10 + [2] * 10 + [3] * 10 + [4] * 5


def test_a_composite_drops_before_it_waits_and_waits_for_the_longest() -> None:
    ledger, asking = Ledger(), Asking("j", START)
    short, long = Constant("a", "wait", 1_000), Constant("b", "wait", 9_000)
    assert Composite((short, Composite((long,)))).verdict(ledger, asking) == Wait(START + 9_000, "b")
    assert Composite((long, Constant("c", "drop", reason="no"))).verdict(ledger, asking) == Drop("no")
    assert Composite((Constant("d"),)).verdict(ledger, asking) == Admit()


def test_a_composite_that_refuses_takes_nothing() -> None:
    ledger = Ledger()
    gate = Composite((Rate("r", "k", 5, WINDOW), Concurrency("c", "k:running", 1)))
    assert gate.verdict(ledger, Asking("j1", START)) == Admit()
    taken = gate.take(ledger, Asking("j1", START), "j1:1", START + 1_000)
    assert taken.slots == ("k:running",)
    before = ledger.copy()
    assert isinstance(gate.verdict(ledger, Asking("j2", START)), Wait)
    assert ledger == before


def test_a_gate_that_raises_is_a_wait() -> None:
    ledger = Ledger(spoilt={"k:running"})
    said = ask(Concurrency("c", "k:running", 1), ledger, Asking("j1", START))
    assert isinstance(said, Wait)
    assert said.fault
    assert said.until_ms > START


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        ("[{type: quota}]", r"models\.m\.gates\[0\]\.type: Invalid value 'quota'; gate types are composite, concurr"),
        ("[{type: composite, gates: [{type: x}]}]", r"models\.m\.gates\[0\]\.gates\[0\]\.type: Invalid value 'x'"),
        ("[{type: composite, gates: []}]", r"models\.m\.gates\[0\]\.gates: .* length >= 1"),
        ("[{limit: 3}]", r"models\.m\.gates\[0\]: .*missing required field `type`"),
        ("[{type: rate, limit: 0}]", r"models\.m\.gates\[0\]\.limit: .* >= 1"),
        ("[{type: rate, limit: 1, per: 60}]", r"models\.m\.gates\[0\]: .*unknown field `per`"),
        ("[{type: rate, limit: 1, window_seconds: 86401}]", r"models\.m\.gates\[0\]\.window_seconds: .* <= 86400"),
        ("[{type: constant, verdict: maybe}]", r"models\.m\.gates\[0\]\.verdict: Invalid enum value 'maybe'"),
        ("rate", r"models\.m\.gates: Expected `array`"),
    ],
)
def test_a_gate_that_nobody_knows_stops_the_start_and_is_named(gates: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _ = parse_config(MODEL.replace("GATES", gates))


def test_a_provider_whose_name_would_break_a_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="providers: 'a:b' must be"):
        _ = parse_config(MODEL.replace("GATES", "[]") + "\nproviders: {'a:b': {concurrent: 1}}")


def test_no_limits_are_no_gate() -> None:
    assert parse_config(MODEL.replace("GATES", "[]")).gate("m") is None
    shared = MODEL.replace("GATES", "[], provider: p") + "\nproviders: {p: {}}"
    assert parse_config(shared).gate("m") is None
