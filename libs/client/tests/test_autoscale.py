"""What KEDA will do: the figures that were measured on the real one, and those of its rules."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from relayq.autoscale import forecast, jobs_to_start, relays_wanted
from relayq.command import app


@pytest.mark.parametrize(
    ("waiting", "running", "unfinished", "most", "starts"),
    [
        (0, 0, 0, 10, 0),
        (1, 0, 0, 10, 1),
        (14, 0, 0, 10, 10),
        (4, 10, 10, 10, 0),
        (4, 9, 9, 10, 1),
        (3, 3, 3, 10, 3),  # a second batch does not wait for the first
        (0, 1, 0, 10, 1),  # a relay died: its replacement starts before the job is given back
        (2, 0, 2, 10, 0),  # Jobs that have not taken theirs yet are counted
        (0, 0, 3, 10, 0),
    ],
)
def test_a_scaled_job_starts_what_is_open_less_what_is_unfinished(
    waiting: int, running: int, unfinished: int, most: int, starts: int
) -> None:
    assert jobs_to_start(waiting, running, unfinished, most) == starts


@pytest.mark.parametrize(
    ("waiting", "running", "now", "wanted"),
    [(0, 0, 0, 0), (1, 0, 0, 1), (14, 0, 5, 5), (0, 1, 3, 1), (0, 11, 10, 5), (3, 1, 1, 4)],
)
def test_a_scaled_object_wants_one_relay_for_each_open_job(waiting: int, running: int, now: int, wanted: int) -> None:
    assert relays_wanted(waiting, running, now, 0, 5) == wanted


def test_a_scaled_object_leaves_small_differences_alone() -> None:
    assert relays_wanted(0, 21, 20, 0, 100) == 20
    assert relays_wanted(0, 23, 20, 0, 100) == 23


def test_fourteen_jobs_of_at_most_ten_make_fourteen_as_on_the_real_keda() -> None:
    ahead = forecast(14, most=10, polling_seconds=10, start_seconds=45, job_seconds=200)

    assert ahead.jobs == 14
    assert [look.starts for look in ahead.looks] == [10, 4]
    assert max(look.unfinished + look.starts for look in ahead.looks) == 10


def test_the_first_batch_waits_for_its_start_only() -> None:
    ahead = forecast(3, most=10, polling_seconds=10, start_seconds=45, job_seconds=200)

    assert (ahead.jobs, ahead.longest_wait_seconds) == (3, 45)
    assert ahead.empty_after_seconds == 245


def test_a_second_batch_is_started_beside_the_first() -> None:
    ahead = forecast(3, 3, unfinished=3, most=10, polling_seconds=10, start_seconds=45, job_seconds=200)

    assert [(look.at_seconds, look.starts) for look in ahead.looks] == [(0, 3)]
    assert ahead.longest_wait_seconds == 45


def test_an_empty_queue_starts_nothing() -> None:
    assert forecast(0, most=10, polling_seconds=5, start_seconds=1, job_seconds=1) == ((), 0, 0, 0)


def test_the_command_says_what_happens_now_and_then() -> None:
    said = CliRunner().invoke(
        app, ["autoscale-plan", "--waiting", "14", "--start-seconds", "45", "--job-seconds", "200"]
    )

    assert said.exit_code == 0
    assert "14 waiting + 0 running, at most 10, 0 unfinished Jobs: KEDA starts 10 now." in said.stdout
    assert "14 Jobs in all" in said.stdout


def test_the_command_gives_json() -> None:
    said = CliRunner().invoke(app, ["autoscale-plan", "--waiting", "2", "--running", "1", "--json"])
    document = json.loads(said.stdout)

    assert (document["starts"], document["unfinished"]) == (2, 1)
    assert document["forecast"]["jobs"] == 2
    assert document["forecast"]["looks"][0] == {
        "at_seconds": 0,
        "waiting": 2,
        "running": 1,
        "unfinished": 1,
        "starts": 2,
    }


def test_the_command_knows_the_warm_kind() -> None:
    arguments = ["autoscale-plan", "--kind", "ScaledObject", "--running", "1", "--relays", "3", "--max", "4"]
    said = CliRunner().invoke(app, arguments)

    assert "1 relays wanted (of 0 to 4), 3 there." in said.stdout
    assert "finishes its job first" in said.stdout


def test_the_command_asks_for_a_state() -> None:
    assert CliRunner().invoke(app, ["autoscale-plan"]).exit_code == 2
