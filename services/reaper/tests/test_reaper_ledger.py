"""Health follows what the passes achieve."""

from __future__ import annotations

from reaper.ledger import BROKEN_AFTER_SECONDS, DEAF_AFTER_SECONDS, Ledger


def ledger() -> Ledger:
    made = Ledger(0)
    made.expect("reap", ["a", "b"], every_seconds=5, vital=True)
    made.expect("store", ["all"], every_seconds=60, vital=False)
    return made


def all_good(made: Ledger, now: float) -> None:
    for name, part in (("reap", "a"), ("reap", "b"), ("store", "all")):
        _ = made.succeeded(name, part, now)


def test_it_is_live_but_not_ready_before_the_first_look() -> None:
    health = ledger().health(1)

    assert health.live
    assert not health.ready
    assert health.detail["reap a"] == "not looked yet"


def test_it_is_ready_once_every_part_succeeded() -> None:
    made = ledger()
    all_good(made, 1)

    assert made.health(2) == (True, True, {})


def test_one_failing_model_makes_it_unready_and_is_named_and_does_not_end_it() -> None:
    made = ledger()
    all_good(made, 1)
    for now in range(2, 2000, 5):
        _ = made.succeeded("reap", "a", now)
        _ = made.failed("reap", "b", "queue_unavailable: gone")

    assert made.health(2000) == (True, False, {"reap b": "queue_unavailable: gone"})
    assert not made.overdue(2000, after_seconds=BROKEN_AFTER_SECONDS)


def test_a_pass_that_reaches_no_part_for_too_long_ends_liveness() -> None:
    made = ledger()
    all_good(made, 1)

    assert made.health(1 + DEAF_AFTER_SECONDS + 50).live
    health = made.health(2 + DEAF_AFTER_SECONDS + 50)
    assert not health.live
    assert not health.ready
    assert "reap" in health.detail


def test_a_store_that_is_away_does_not_end_liveness() -> None:
    made = ledger()
    all_good(made, 1)
    for now in range(2, 5000, 5):
        _ = made.succeeded("reap", "a", now)
        _ = made.succeeded("reap", "b", now)
        _ = made.failed("store", "all", "storage_unavailable")

    assert made.health(5000).live
    assert not made.health(5000).ready


def test_only_news_are_worth_a_line() -> None:
    made = ledger()

    assert made.failed("reap", "a", "x")
    assert not made.failed("reap", "a", "x")
    assert made.failed("reap", "a", "y")
    assert made.succeeded("reap", "a", 1)
    assert not made.succeeded("reap", "a", 2)
