"""When nothing may be reaped because Redis was away."""

from __future__ import annotations

from queuecore.testing.requirement import requirement
from reaper.grace import RestartGrace


def grace() -> RestartGrace:
    return RestartGrace({"short": 10.0, "long": 300.0})


def test_nothing_is_reaped_before_the_first_connection() -> None:
    assert grace().holds("short", 0)


def test_a_fresh_stack_is_not_held() -> None:
    restart = grace()
    assert not restart.connected("run:1", 5)
    assert not restart.begin("short", [], 5)

    assert not restart.holds("short", 5)


def test_a_fresh_stack_is_not_held_although_redis_started_later() -> None:
    restart = grace()
    restart.away()
    assert not restart.connected("run:1", 5)
    assert not restart.begin("short", [], 5)

    assert not restart.holds("short", 5)


def test_claims_of_this_run_do_not_hold_a_reaper_that_has_just_started() -> None:
    restart = grace()
    _ = restart.connected("run:1", 5)

    assert not restart.begin("short", ["run:7"], 5)
    assert not restart.holds("short", 5)


@requirement("restart:reap:owners-get-a-lease")
def test_another_run_holds_each_model_for_its_own_lease() -> None:
    restart = grace()
    _ = restart.connected("run:1", 0)

    assert restart.connected("next:1", 100)
    assert restart.holds("short", 109.9)
    assert not restart.holds("short", 110)
    assert restart.holds("long", 399.9)
    assert not restart.holds("long", 400)


@requirement("restart:reap:owners-get-a-lease")
def test_an_outage_holds_from_its_end() -> None:
    restart = grace()
    _ = restart.connected("run:1", 0)
    restart.away()

    assert restart.holds("short", 1000)
    assert restart.witness == ""
    assert restart.answered(1000)
    assert restart.witness == "run:1"
    assert restart.holds("short", 1009.9)
    assert not restart.holds("short", 1010)


def test_an_answer_without_an_outage_holds_nothing() -> None:
    restart = grace()
    _ = restart.connected("run:1", 0)

    assert not restart.answered(1)
    assert not restart.holds("short", 1)


def test_an_answer_before_the_first_connection_ends_nothing() -> None:
    restart = grace()
    restart.away()

    assert not restart.answered(1)
    assert restart.holds("short", 1)


@requirement("restart:reap:owners-get-a-lease")
def test_a_reaper_started_after_the_restart_sees_it_by_claims_of_another_run() -> None:
    restart = grace()
    _ = restart.connected("next:1", 50)

    assert restart.begin("short", ["run:7"], 50)
    assert restart.begun("short")
    assert not restart.begun("long")
    assert restart.holds("short", 59)
    assert not restart.holds("short", 60)


@requirement("restart:reap:owners-get-a-lease")
def test_a_reaper_started_during_an_outage_gives_the_owners_it_finds_a_lease() -> None:
    restart = grace()
    restart.away()
    _ = restart.connected("run:1", 50)

    assert restart.begin("short", ["run:7"], 50)
    assert restart.holds("short", 59)
