"""Seed 004's scores: its worked examples, and that age counts although the stored number never changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecore.scoring import BASES, BONUSES, rank_ms, score
from queuecore.testing.requirement import requirement

priorities = st.sampled_from(sorted(BASES))
classes = st.sampled_from(["", *BONUSES])


@pytest.mark.parametrize(
    ("priority", "age_seconds", "content_class", "expected"),
    [
        ("normal", 0, "", 100.000),  # normal document, just queued
        ("normal", 3600, "", 96.400),  # 1 hour old
        ("high", 0, "", 50.000),
        ("critical", 1800, "", 8.200),  # 30 min old
        ("high", 0, "api-docs", 45.000),
    ],
)
@requirement("priority:score:seeds-examples")
def test_the_seeds_examples(priority: str, age_seconds: float, content_class: str, expected: float) -> None:
    assert score(priority, age_seconds=age_seconds, content_class=content_class) == pytest.approx(expected, abs=1e-9)


@given(priorities, classes, st.integers(0, 10**6), priorities, classes, st.integers(0, 10**6), st.integers(0, 10**7))
@requirement("priority:score:age-counts")
def test_what_is_stored_orders_two_jobs_as_the_formula_does_at_any_moment(  # noqa: PLR0917
    one: str, one_class: str, one_at: int, two: str, two_class: str, two_at: int, later: int
) -> None:
    now = max(one_at, two_at) + later
    wanted = score(one, age_seconds=now - one_at, content_class=one_class) - score(
        two, age_seconds=now - two_at, content_class=two_class
    )
    stored = rank_ms(one, one_class) + 1000 * one_at - rank_ms(two, two_class) - 1000 * two_at
    assert stored / 1_000_000 == pytest.approx(wanted, abs=1e-6)


@requirement("priority:score:age-counts")
def test_a_normal_job_waits_at_most_25_hours_for_critical_ones() -> None:
    assert rank_ms("normal") - rank_ms("critical") == 25 * 3_600_000
