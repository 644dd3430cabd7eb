from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecore.retry import Backoff, RetryPolicy, retry_after_seconds

DRAWS = st.floats(0, 1, exclude_max=True)
SECONDS = st.floats(0.001, 1e6)
DATE = "Wed, 21 Oct 2026 07:28:00 GMT"


@given(SECONDS, SECONDS, st.integers(0, 10**9), DRAWS)
def test_a_pause_lies_between_zero_and_the_cap(first: float, most: float, failures: int, draw: float) -> None:
    assert 0 <= Backoff(first, most).pause_seconds(failures, lambda: draw) <= most


@given(SECONDS, st.integers(1, 30))
def test_the_bound_doubles_until_the_cap(first: float, failures: int) -> None:
    endless = Backoff(first, float("inf"))
    assert endless.bound_seconds(failures + 1) == pytest.approx(2 * endless.bound_seconds(failures))
    assert endless.bound_seconds(1) == first


def test_full_jitter_reaches_both_ends_of_the_bound() -> None:
    backoff = Backoff(2, 60)
    assert backoff.pause_seconds(3, lambda: 0.0) == 0
    assert backoff.pause_seconds(3, lambda: 0.5) == 4
    assert backoff.pause_seconds(9, lambda: 1.0) == 60


@given(st.integers(1, 50), st.integers(1, 50), DRAWS)
def test_there_are_never_more_runs_than_attempts(most: int, failures: int, draw: float) -> None:
    delay = RetryPolicy(most, Backoff(1, 10)).delay_seconds(failures, draw=lambda: draw)
    assert (delay is None) == (failures >= most)


@given(st.floats(0, 1e9), DRAWS)
def test_a_retry_after_is_a_lower_bound_and_capped(asked: float, draw: float) -> None:
    policy = RetryPolicy(5, Backoff(1, 10), longest_retry_after_seconds=100)
    delay = policy.delay_seconds(1, retry_after_seconds=asked, draw=lambda: draw)
    assert delay is not None
    assert min(asked, 100) <= delay <= max(100, 10)


@given(st.floats(0, 100), st.floats(0, 100), DRAWS)
def test_no_wait_passes_the_deadline(asked: float, left: float, draw: float) -> None:
    policy = RetryPolicy(5, Backoff(1, 10))
    delay = policy.delay_seconds(1, retry_after_seconds=asked, left_seconds=left, draw=lambda: draw)
    assert delay is None or delay < left


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        ("120", None, 120.0),
        (" 0 ", None, 0.0),
        ("Wed, 21 Oct 2026 07:29:30 GMT", DATE, 90.0),
        ("Wednesday, 21-Oct-26 07:29:30 GMT", DATE, 90.0),  # RFC 850 form
        ("Wed Oct 21 07:29:30 2026", DATE, 90.0),  # asctime form
        ("Wed, 21 Oct 2026 07:00:00 GMT", DATE, 0.0),  # past
        ("Wed, 21 Oct 2026 07:29:30 GMT", None, None),  # no clock to compare with
        ("9" * 400, None, float("9" * 12)),
        ("-5", None, None),
        ("1.5", None, None),
        ("\u0661\u0662", None, None),  # digits, but not ASCII
        ("soon", DATE, None),
        ("", DATE, None),
        (None, None, None),
    ],
)
def test_every_form_of_retry_after_is_read(value: str | None, date: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(value, date) == seconds


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_retry_after_breaks_the_reader(value: str, date: str) -> None:
    seconds = retry_after_seconds(value, date)
    assert seconds is None or seconds >= 0
