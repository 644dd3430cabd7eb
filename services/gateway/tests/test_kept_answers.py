"""Answers that are used again: of a model with ``cache_seconds``, and of reads that look at every queue (ADR 0009)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from gateway_stack import Stack, open_stack

from queuecore.testing.memory import MemoryQueue
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio
MODELS = """
models:
  kept:
    service_type: echo
    operations: {echo: /echo, other: /other}
    cache_seconds: 900
    default: true
  other: {service_type: echo, operations: {echo: /echo}, cache_seconds: 900}
  plain: {service_type: plain, operations: {echo: /echo}}
"""
PARAMS = [{"params": '{"a": 1, "b": [2]}'}, {"params": '{"b": [2], "a": 1}'}]


@pytest.fixture
async def stack() -> AsyncGenerator[Stack, None]:
    async with open_stack(models=MODELS, auth="header") as opened:
        yield opened


async def post(stack: Stack, query: str = "", *, content: bytes = b"x", **headers: str) -> tuple[str, str, int]:
    """(X-Cache, job, status)"""
    answer = await stack.client.post(
        f"/jobs/echo{query}",
        content=content,
        headers={"x-consumer": "acme"} | {k.replace("_", "-"): v for k, v in headers.items()},
    )
    assert answer.status_code in {200, 202}, answer.text
    return answer.headers.get("x-cache", ""), answer.json()["job_id"], answer.status_code


@requirement("cache:submit:one-run")
async def test_an_equal_request_is_answered_by_the_job_that_runs_and_then_by_its_result(stack: Stack) -> None:
    assert (await post(stack))[::2] == ("miss", 202)
    _, first, _ = shared = await post(stack)
    assert shared == ("hit", stack.job_ids[0], 202)
    await stack.complete(await stack.claim("kept"), b'{"a": 1}')

    kept = await stack.client.post("/jobs/echo", content=b"x", headers={"x-consumer": "acme"})

    assert (kept.status_code, kept.headers["x-cache"], kept.json()["status"]) == (200, "hit", "completed")
    result = await stack.client.get(kept.json()["links"]["result"], headers={"x-consumer": "acme"})
    assert result.content == b'{"a": 1}'
    assert stack.job_ids == [first]
    assert sum(key.endswith("input") for key in stack.objects) == 1, "a hit leaves no object"


@requirement("cache:submit:one-run")
async def test_a_hundred_simultaneous_requests_are_one_job(stack: Stack) -> None:
    told = await asyncio.gather(*(post(stack) for _ in range(100)))

    assert len({job for _, job, _ in told}) == 1
    assert [cache for cache, _, _ in told].count("miss") == 1
    assert len(stack.job_ids) == 1
    assert len(stack.objects) == 1


@requirement("cache:submit:never-across-tenants")
async def test_what_differs_is_run_and_another_tenant_is_told_of_nothing(stack: Stack) -> None:
    _, first, _ = await post(stack, '?params={"a":1,"b":2}')
    assert await post(stack, '?params={"b":2,"a":1}') == ("hit", first, 202)

    for one in [
        await post(stack, '?params={"a":1,"b":3}'),
        await post(stack, '?params={"a":1,"b":2}', content=b"y"),
        await post(stack, '?params={"a":1,"b":2}&operation=other'),
        await post(stack, '?params={"a":1,"b":2}&model=other'),
        await post(stack, '?params={"a":1,"b":2}', content_type="text/plain"),
        await post(stack, '?params={"a":1,"b":2}', x_consumer="another"),
    ]:
        assert one[0] == "miss", one
    assert len(set(stack.job_ids)) == 7


@requirement("cache:submit:one-run")
async def test_no_cache_runs_anew_and_no_store_leaves_nothing(stack: Stack) -> None:
    _, unseen, _ = await post(stack, cache_control="no-store")
    _, first, _ = await post(stack)
    _, second, _ = fresh = await post(stack, cache_control="No-Cache")

    assert len({unseen, first, second}) == 3
    assert fresh[0] == "miss"
    assert (await post(stack))[1] == second


@requirement("cache:submit:one-run")
@pytest.mark.parametrize(
    "query",
    ["?callback_url=https://example.org/h", "?not_before=2999-01-01T00:00:00Z", "?ordering_key=k", "?dedup_key=d"],
)
async def test_who_asks_for_more_than_the_answer_gets_a_job_of_its_own(stack: Stack, query: str) -> None:
    _, first, _ = await post(stack)
    cache, own, _ = await post(stack, query)

    assert (cache, own != first) == ("miss", True)
    assert (await post(stack))[1] == first


@requirement("cache:submit:one-run")
async def test_a_result_that_was_deleted_answers_nobody_and_a_hit_frees_its_idempotency_key(stack: Stack) -> None:
    _, first, _ = await post(stack)
    await stack.complete(await stack.claim("kept"), b"{}")
    assert (await post(stack, idempotency_key="k"))[:2] == ("hit", first)
    gone = await stack.client.delete(f"/jobs/echo/{first}/result", headers={"x-consumer": "acme"})
    assert gone.status_code == 204

    cache, second, _ = await post(stack, idempotency_key="k")

    assert (cache, second != first) == ("miss", True)


async def test_a_model_without_cache_says_nothing_of_it(stack: Stack) -> None:
    answer = await stack.client.post("/jobs/plain", content=b"x", headers={"x-consumer": "acme"})
    assert "x-cache" not in answer.headers


@requirement("cache:clear:bounded-steps")
async def test_an_operator_clears_one_model_or_all(stack: Stack) -> None:
    _ = await post(stack), await post(stack, "?operation=other"), await post(stack, "?model=other")

    assert (await stack.admin.delete("/cache/kept")).json() == {"model": "kept", "removed": 2}
    assert [(await post(stack))[0], (await post(stack, "?model=other"))[0]] == ["miss", "hit"]
    assert (await stack.admin.delete("/cache")).json() == {"removed": 2}
    assert (await post(stack, "?model=other"))[0] == "miss"
    assert (await stack.admin.delete("/cache/nobody")).json()["code"] == "model_not_found"


@requirement("cache:read:never-in-the-way")
async def test_reads_are_kept_and_made_anew_after_a_write_or_on_request() -> None:
    async with open_stack(models=MODELS, read_cache_seconds=60) as stack:
        one, two = await stack.admin.get("/queues"), await stack.admin.get("/queues")
        assert [one.headers["x-cache"], two.headers["x-cache"]] == ["miss", "hit"]
        assert one.content == two.content
        fresh = await stack.admin.get("/queues", headers={"cache-control": "no-cache"})
        assert fresh.headers["x-cache"] == "miss"

        _ = await stack.admin.post("/queues/kept/pause")

        after = await stack.admin.get("/queues")
        assert (after.headers["x-cache"], after.json()["queues"][0]["paused"]) == ("miss", "operator")
        models = await asyncio.gather(*(stack.client.get("/models") for _ in range(20)))
        assert len({answer.content for answer in models}) == 1
        stack.queue.clock.advance(60_000)
        assert (await stack.client.get("/models")).headers["x-cache"] == "miss"


@requirement("cache:read:never-in-the-way")
async def test_a_cache_that_is_away_is_a_miss() -> None:
    queue = MemoryQueue()
    queue.cache.away = True
    async with open_stack(models=MODELS, queue=queue, read_cache_seconds=60) as stack:
        for _ in range(2):
            answer = await stack.admin.get("/queues")
            assert (answer.status_code, answer.headers["x-cache"]) == (200, "miss")
        assert (await stack.admin.post("/queues/kept/pause")).status_code == 200


async def test_reads_are_not_kept_unless_asked_for(stack: Stack) -> None:
    answers = [await stack.admin.get("/queues"), await stack.client.get("/models", headers={"x-consumer": "acme"})]
    assert all("x-cache" not in answer.headers for answer in answers)
