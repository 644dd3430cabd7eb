"""Readable until the stated expiry, then 410 with the cause, then 404; deleted on request."""

from __future__ import annotations

import pytest
from gateway_stack import Stack

from queuecore.broker import Retention
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


async def finished(stack: Stack) -> str:
    response = await stack.client.post("/jobs/echo?model=large", content=b"x")
    await stack.complete(await stack.claim("large"), b"result")
    return response.headers["location"]


@requirement("retention:erase:gone-with-a-cause")
async def test_deleted_result_is_410_with_the_cause_and_leaves_no_bytes(stack: Stack) -> None:
    path = await finished(stack)
    assert len(stack.objects) == 2

    assert (await stack.client.delete(f"{path}/result")).status_code == 204

    assert stack.objects == {}
    for answer in (
        await stack.client.get(f"{path}/result"), await stack.client.get(path),
        await stack.client.delete(f"{path}/result"),
    ):  # fmt: skip
        assert (answer.status_code, answer.json()["cause"]) == (410, "deleted")
    stack.queue.clock.advance(Retention().tombstone_ms + 1)
    assert (await stack.client.get(path)).status_code == 404


@requirement("retention:erase:gone-with-a-cause")
async def test_retention_ends_with_410_and_then_404(stack: Stack) -> None:
    path = await finished(stack)
    stack.queue.clock.advance(Retention().result_ms - 1)
    assert (await stack.client.get(f"{path}/result")).content == b"result"
    stack.queue.clock.advance(2)
    for answer in (await stack.client.get(f"{path}/result"), await stack.client.get(path)):
        assert (answer.status_code, answer.json()["cause"]) == (410, "retention_over")
        assert answer.json()["job"]["status"] == "completed"
    stack.queue.clock.advance(Retention().tombstone_ms)
    assert (await stack.client.get(path)).status_code == 404


async def test_job_without_a_verdict_is_not_deleted(stack: Stack) -> None:
    response = await stack.client.post("/jobs/echo?model=large", content=b"x")
    path = response.headers["location"]

    answer = await stack.client.delete(f"{path}/result")

    assert (answer.status_code, answer.json()["code"]) == (409, "wrong_state")
    assert (await stack.client.get(path)).status_code == 200
