from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecore.names import check_model_name, is_job_id, kubernetes_name, new_job_id
from queuecore.redis.keys import QueueKeys

CASES = json.loads((Path(__file__).parents[1] / "data/json/model_names.json").read_text("utf-8"))
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")


@pytest.mark.parametrize("name", [*CASES["accept"], "meta-llama/Llama-3.1-8B", "a:b"])
def test_names_that_people_use_are_accepted(name: str) -> None:
    assert check_model_name(name) == name


@pytest.mark.parametrize("name", [*CASES["refuse_or_encode"], "x:pending", "x:ordered:y", "/a", "-a", "a" * 201])
def test_names_that_would_break_a_key_a_route_or_a_log_are_refused_in_words(name: str) -> None:
    with pytest.raises(ValueError, match="model name"):
        _ = check_model_name(name)


@pytest.mark.parametrize("names", CASES["must_not_collide"], ids=str)
def test_similar_names_stay_apart_in_redis_and_in_kubernetes(names: list[str]) -> None:
    for one, other in combinations(names, 2):
        assert kubernetes_name(one) != kubernetes_name(other)
        assert QueueKeys(one).base != QueueKeys(other).base


@given(st.text(min_size=1, max_size=200))
def test_a_kubernetes_name_is_a_label_whatever_the_name(name: str) -> None:
    made = kubernetes_name(name)
    assert LABEL.match(made)
    assert len(made) <= 40


def test_job_ids_grow_and_are_canonical() -> None:
    ids = [new_job_id() for _ in range(5_000)]
    assert ids == sorted(set(ids))
    assert all(is_job_id(one) and one[14] == "7" for one in ids)


@pytest.mark.parametrize(
    "text", ["", "x", "01A22F89-79BA-704E-9C3C-DF84051B8018", "01a22f8979ba704e9c3cdf84051b8018", "../a"]
)
def test_other_spellings_are_no_job_ids(text: str) -> None:
    assert not is_job_id(text)
