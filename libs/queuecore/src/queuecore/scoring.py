"""Priority scores of seed 004: lower runs first.

    score = base_priority - age_seconds * 0.001 - type_bonus

A score that falls with age would have to be written anew all the time. Two jobs age alike, so what never changes orders
them the same: the score a job would have had at the epoch, ``rank_ms + enqueued_ms``, where 1 of base is worth 1,000 s.
That is what the zset holds, in milliseconds. The largest wait follows: a normal job is ahead of every critical one that
comes more than (100 - 10) * 1,000 s = 25 hours after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

BASES: Final[Mapping[str, int]] = MappingProxyType({"normal": 100, "high": 50, "critical": 10})
BONUSES: Final[Mapping[str, int]] = MappingProxyType({"api-docs": 5, "code": 3})
PER_SECOND: Final = 0.001
MS_PER_POINT: Final = 1_000_000  # 1 / PER_SECOND seconds
_WORDS: Final = {"false": "normal", "true": "high"}  # as lists say it


def score(priority: str, *, age_seconds: float, content_class: str = "") -> float:
    """The seed's number, for people and for tests."""
    return BASES[priority] - age_seconds * PER_SECOND - BONUSES.get(content_class, 0)


def rank_ms(priority: str, content_class: str = "") -> int:
    """What is added to the time of enqueueing to make the score that the zset holds."""
    return (BASES[_WORDS.get(priority, priority)] - BONUSES.get(content_class, 0)) * MS_PER_POINT
