"""The bound a client sets itself is what a limit by tokens counts until the answer says better."""

from __future__ import annotations

import pytest

from gateway.tokens import estimate


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ("", ""),
        ('{"max_tokens": 300}', "300"),
        ('{"max_tokens": "300"}', "300"),
        ('{"max_completion_tokens": 12}', "12"),
        ('{"max_output_tokens": "7", "max_tokens": 9}', "9"),
        ('{"max_tokens": 0}', ""),
        ('{"max_tokens": -5}', ""),
        ('{"max_tokens": 1.5}', ""),
        ('{"max_tokens": ["1", "2"]}', ""),
        ('{"max_tokens": "many", "max_completion_tokens": 3}', "3"),
        ('{"max_tokens": 99999999999999999999}', ""),
        ('{"max_tokens": true}', ""),
        ('{"text": "max_tokens"}', ""),
    ],
)
def test_max_tokens_of_the_params_is_the_estimate(params: str, field: str) -> None:
    assert estimate(params) == field
