"""Who is dead: the pure decision, by example and against a definition written a second time, the slow way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queuecore.testing.requirement import requirement
from reaper.death import SMALLEST_CROWD, DeathWatch, Look, run_id

GRACE, GAP = 2.0, 2.5
WITNESS = "run:1"
OWNER = "run:7"


def watch() -> DeathWatch:
    return DeathWatch(grace_seconds=GRACE, longest_gap_seconds=GAP)


def look(at: float, owners: set[str], living: set[str] | None, witness: str = WITNESS) -> Look:
    return Look(at, at, witness, frozenset(owners), None if living is None else frozenset(living))


def missing_since(deaths: DeathWatch, start: float, owner: str = OWNER) -> None:
    assert not deaths.observe(look(start, {owner}, {WITNESS, owner}))
    assert not deaths.observe(look(start + 1, {owner}, {WITNESS}))
    assert not deaths.observe(look(start + 2, {owner}, {WITNESS}))


def test_an_owner_missing_for_a_whole_grace_is_dead() -> None:
    deaths = watch()
    missing_since(deaths, 0)

    assert deaths.observe(look(3, {OWNER}, {WITNESS})) == {OWNER}


@requirement("death:reconnect:owner-keeps-its-job")
def test_an_owner_that_registered_another_connection_within_the_grace_lives() -> None:
    deaths = watch()
    missing_since(deaths, 0)

    assert not deaths.observe(look(3, {"run:8"}, {WITNESS, "run:8"}))
    assert not deaths.observe(look(9, {"run:8"}, {WITNESS, "run:8"}))


def test_an_owner_that_never_was_seen_alive_is_dead_after_the_grace_too() -> None:
    deaths = watch()
    for at in (0, 1):
        assert not deaths.observe(look(at, {OWNER}, {WITNESS}))

    assert deaths.observe(look(2, {OWNER}, {WITNESS})) == {OWNER}
    assert not deaths.was_alive(OWNER)


@requirement("death:outage:silence-is-no-death")
def test_a_server_that_does_not_say_who_is_connected_kills_nobody() -> None:
    deaths = watch()
    for at in range(10):
        assert not deaths.observe(look(at, {OWNER}, None))


@requirement("death:outage:silence-is-no-death")
def test_a_list_without_the_reapers_own_connection_proves_nothing() -> None:
    deaths = watch()
    missing_since(deaths, 0)

    assert not deaths.observe(look(3, {OWNER}, set()))
    assert not deaths.observe(look(4, {OWNER}, {WITNESS})), "the grace began again"
    assert not deaths.observe(look(5, {OWNER}, {WITNESS}))
    assert deaths.observe(look(6, {OWNER}, {WITNESS})) == {OWNER}


@requirement("death:outage:silence-is-no-death")
def test_a_new_connection_of_the_reapers_own_starts_the_grace_again() -> None:
    deaths = watch()
    missing_since(deaths, 0)

    assert not deaths.observe(look(3, {OWNER}, {"run:2"}, witness="run:2"))


@requirement("death:outage:silence-is-no-death")
def test_time_in_which_nobody_looked_does_not_count() -> None:
    deaths = watch()
    missing_since(deaths, 0)

    assert not deaths.observe(look(60, {OWNER}, {WITNESS}))


def test_a_slow_answer_does_not_count_as_waiting() -> None:
    deaths = watch()
    assert not deaths.observe(look(0, {OWNER}, {WITNESS}))

    assert not deaths.observe(Look(1.0, 2.4, WITNESS, frozenset({OWNER}), frozenset({WITNESS})))


def test_what_was_seen_before_an_error_is_forgotten() -> None:
    deaths = watch()
    missing_since(deaths, 0)
    deaths.forget()

    assert not deaths.observe(look(3, {OWNER}, {WITNESS}))
    assert not deaths.was_alive(OWNER)


def test_an_owner_of_another_run_of_the_server_is_left_to_its_lease() -> None:
    deaths = watch()
    for at in range(10):
        assert not deaths.observe(look(at, {"before:7"}, {WITNESS}))


@requirement("death:mass:grace-starts-again")
def test_a_crowd_that_vanishes_at_once_has_two_graces() -> None:
    owners = {f"run:{number}" for number in range(10, 15)}
    deaths = watch()
    assert not deaths.observe(look(0, owners, {WITNESS, *owners}))
    left = {"run:10", "run:11"}
    for at in (1, 2, 3, 4):
        assert not deaths.observe(look(at, owners, {WITNESS, *left}))

    assert deaths.observe(look(5, owners, {WITNESS, *left})) == owners - left


@requirement("death:mass:grace-starts-again")
def test_a_crowd_that_a_look_cuts_in_two_has_two_graces_too() -> None:
    owners = {f"run:{number}" for number in range(10, 16)}
    deaths = watch()
    assert not deaths.observe(look(0, owners, {WITNESS, *owners}))
    assert not deaths.observe(look(1, owners, {WITNESS, "run:10", "run:11", "run:12"}))
    for at in (2, 3, 4, 5):
        assert not deaths.observe(look(at, owners, {WITNESS}))

    assert deaths.observe(look(6, owners, {WITNESS})) == owners


def test_a_steady_trickle_of_deaths_does_not_put_off_the_first() -> None:
    # One of eight dies every look and is replaced: over half of all owners are soon missing ones.
    deaths, living = watch(), [f"run:{number}" for number in range(10, 14)]
    owners, dead = set(living), set[str]()
    for at in range(20):
        fresh = [f"run:{100 + 3 * at + number}" for number in range(3)]
        owners |= set(fresh)
        living = [*living[3:], *fresh]
        found = deaths.observe(look(at, owners, {WITNESS, *living}))
        dead |= found
        owners -= found

    assert len(dead) > 40


def test_half_of_a_crowd_is_not_more_than_half() -> None:
    owners = {f"run:{number}" for number in range(10, 16)}
    deaths = watch()
    assert not deaths.observe(look(0, owners, {WITNESS, *owners}))
    left = {"run:10", "run:11", "run:12"}
    for at in (1, 2):
        assert not deaths.observe(look(at, owners, {WITNESS, *left}))

    assert deaths.observe(look(3, owners, {WITNESS, *left})) == owners - left


def test_four_owners_are_no_crowd() -> None:
    owners = {f"run:{number}" for number in range(10, 14)}
    deaths = watch()
    assert not deaths.observe(look(0, owners, {WITNESS, *owners}))
    for at in (1, 2):
        assert not deaths.observe(look(at, owners, {WITNESS}))

    assert deaths.observe(look(3, owners, {WITNESS})) == owners


def test_memory_holds_nobody_who_owns_nothing_any_more() -> None:
    deaths = watch()
    missing_since(deaths, 0)
    assert not deaths.observe(look(3, set(), {WITNESS}))

    assert not deaths.was_alive(OWNER)
    assert not deaths.observe(look(4, {OWNER}, {WITNESS}))


CLIENTS = ("run:10", "run:11", "run:12", "run:13", "run:14", "run:15", "other:10")
subsets = st.frozensets(st.sampled_from(CLIENTS))
steps = st.tuples(
    st.floats(0.1, 3.5),  # since the last answer
    st.floats(0, 0.4),  # how long the answer took
    st.sampled_from([WITNESS, WITNESS, WITNESS, WITNESS, "run:2", ""]),
    subsets,
    st.one_of(st.none(), subsets, subsets, subsets, subsets),
    st.booleans(),  # whether the server lists the witness
    st.sampled_from([False] * 9 + [True]),  # whether something failed before this look
)


def trusted(seen: Look) -> bool:
    return seen.witness != "" and seen.living is not None and seen.witness in seen.living


def is_dead(history: list[Look | None], owner: str) -> bool:
    """The definition: missing in every look of an unbroken row that covers the grace, twice after a crowd's leaving."""
    now = history[-1]
    if now is None or not trusted(now) or run_id(owner) != run_id(now.witness):
        return False
    row: list[Look] = []
    for seen in reversed(history):
        if seen is None or not trusted(seen) or seen.witness != now.witness:
            break
        if row and row[-1].answered_at - seen.answered_at > GAP:
            break
        row.append(seen)
    row.reverse()
    first: list[dict[str, int]] = []  # per look, since which look each has been missing
    grace_from: dict[str, float] = {}
    for index, seen in enumerate(row):
        assert seen.living is not None
        judged = {one for one in seen.owners if run_id(one) == run_id(seen.witness)}
        gone = judged - seen.living
        first.append({one: first[-1].get(one, index) if first else index for one in gone})
        grace_from = {one: grace_from.get(one, seen.answered_at) for one in gone}
        at_once = {one for one in gone if first[-1][one] >= index - 1}
        if index in first[-1].values() and len(judged) >= SMALLEST_CROWD and len(at_once) > len(judged) / 2:
            grace_from |= dict.fromkeys(at_once, seen.answered_at + GRACE)
    return owner in grace_from and now.asked_at - grace_from[owner] >= GRACE


@given(st.lists(steps, max_size=12))
def test_exactly_those_are_dead_that_the_definition_says(
    script: list[tuple[float, float, str, frozenset[str], frozenset[str] | None, bool, bool]],
) -> None:
    deaths, history, now = watch(), list[Look | None](), 0.0
    for pause, took, witness, owners, living, listed, failed in script:
        if failed:
            deaths.forget()
            history.append(None)
        asked, now = now + pause, now + pause + took
        seen = Look(asked, now, witness, owners, living if living is None or not listed else living | {witness})
        history.append(seen)

        dead = deaths.observe(seen)

        assert dead == {owner for owner in CLIENTS if is_dead(history, owner)}
        assert not dead & (seen.living or frozenset()), "nobody who is connected is dead"


@given(st.lists(st.tuples(st.floats(0.1, 2.4), st.booleans()), max_size=30))
def test_an_owner_that_is_never_gone_for_a_grace_is_never_dead(script: list[tuple[float, bool]]) -> None:
    deaths, now, back_at = watch(), 0.0, 0.0
    for pause, present in script:
        now += pause
        if present or now - back_at >= GRACE:
            back_at = now
        living = {WITNESS, OWNER} if back_at == now else {WITNESS}

        assert not deaths.observe(look(now, {OWNER}, living))
