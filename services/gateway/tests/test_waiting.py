"""Waiting without polling: Prefer: wait, and the event stream (family k2)."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from gateway_stack import MakeStack, Stack
from test_http_socket import Wire, connect

from gateway.handlers import events
from queuecore.broker import Failure
from queuecore.errors import BrokerUnavailable
from queuecore.testing.clock import eventually
from queuecore.testing.memory import MemoryBroker
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio
URL = "/jobs/echo?model=large"


async def submit(stack: Stack) -> str:
    return (await stack.client.post(URL, content=b"x")).json()["job_id"]


# -- Prefer: wait -----------------------------------------------------------------------------------------------


@requirement("wait:prefer:200-when-done-else-202")
async def test_submission_that_prefers_to_wait_is_answered_with_the_verdict(stack: Stack) -> None:
    posting = asyncio.create_task(stack.client.post(URL, content=b"x", headers={"prefer": "respond-async, wait=30"}))
    assert await eventually(lambda: stack.job_ids)
    await stack.complete(await stack.claim("large"), b"1")

    response = await asyncio.wait_for(posting, 5)

    assert (response.status_code, response.json()["status"]) == (200, "completed")
    assert response.headers["preference-applied"] == "wait=30"
    assert response.headers["location"] == response.json()["links"]["self"]


async def test_time_that_is_over_is_202(stack: Stack) -> None:
    begun = time.monotonic()
    response = await stack.client.post(URL, content=b"x", headers={"prefer": 'Wait = "1"; x=y'})

    assert (response.status_code, response.json()["status"]) == (202, "pending")
    assert response.headers["preference-applied"] == "wait=1"
    assert time.monotonic() - begun >= 1


@pytest.mark.parametrize("prefer", ["", "wait", "wait=", "wait=-1", "wait=x", "waiting=5", "wait=0"])
async def test_preference_that_says_nothing_is_ignored(stack: Stack, prefer: str) -> None:
    response = await stack.client.post(URL, content=b"x", headers={"prefer": prefer})

    assert response.status_code == 202
    assert "preference-applied" not in response.headers


async def test_accepted_job_is_never_lost_behind_a_wait_that_cannot_be_had(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = await make_stack(max_waiters=1)
    with stack.gateway.edge.waiters.waiting("somebody"):
        assert (await stack.client.post(URL, content=b"x", headers={"prefer": "wait=9"})).status_code == 202

    async def away(_: MemoryBroker, __: str) -> Any:
        raise BrokerUnavailable("away")

    monkeypatch.setattr(MemoryBroker, "get", away)
    response = await stack.client.post(URL, content=b"x", headers={"prefer": "wait=9"})
    assert response.status_code == 202
    assert response.json()["job_id"] in stack.job_ids


async def test_replay_waits_too(stack: Stack) -> None:
    headers = {"idempotency-key": "k", "prefer": "wait=20"}
    _ = await stack.client.post(URL, content=b"x", headers={"idempotency-key": "k"})
    again = asyncio.create_task(stack.client.post(URL, content=b"x", headers=headers))
    await stack.complete(await stack.claim("large"), b"1")

    response = await asyncio.wait_for(again, 5)

    assert (response.status_code, response.json()["status"]) == (200, "completed")
    assert response.headers["idempotent-replay"] == "true"


# -- events -----------------------------------------------------------------------------------------------------


async def stream(stack: Stack, job_id: str, last: str = "") -> Wire:
    wire = await connect(stack)
    again = f"Last-Event-ID: {last}\r\n" if last else ""
    await wire.send(f"GET /jobs/echo/{job_id}/events HTTP/1.1\r\nHost: g\r\n{again}\r\n".encode())
    return wire


async def head_of(wire: Wire) -> str:
    return (await asyncio.wait_for(wire.reader.readuntil(b"\r\n\r\n"), 5)).decode("latin-1")


async def block(wire: Wire) -> str:
    """The next chunk of a chunked answer; "" at its end."""
    size = int(await asyncio.wait_for(wire.reader.readline(), 10), 16)
    return (await wire.reader.readexactly(size + 2)).decode().removesuffix("\r\n")


def parsed(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for event in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in event.splitlines() if not line.startswith((":", "retry")))
        if lines:
            found.append({**lines, "data": json.loads(lines["data"])})
    return found


async def rest_of(wire: Wire) -> list[dict[str, Any]]:
    text = ""
    while more := await block(wire):
        text += more
    return parsed(text)


@requirement("wait:events:status-then-done")
async def test_stream_tells_every_status_and_ends_with_done(stack: Stack) -> None:
    job_id = await submit(stack)
    wire = await stream(stack, job_id)
    head = await head_of(wire)
    assert "200" in head.split("\r\n")[0]
    assert "content-type: text/event-stream" in head
    assert await block(wire) == "retry: 2000\n\n"
    (first,) = parsed(await block(wire))
    assert (first["event"], first["data"]["status"], first["data"]["queue_position"]) == ("status", "pending", 0)

    claim = await stack.claim("large")
    (second,) = parsed(await block(wire))
    assert (second["event"], second["data"]["status"]) == ("status", "processing")
    await stack.complete(claim, b"1")
    last, done = await rest_of(wire)

    assert [(one["event"], one["data"]["status"]) for one in (last, done)] == [
        ("status", "completed"),
        ("done", "completed"),
    ]
    assert len({one["id"] for one in (first, second, last, done)}) == 4


@requirement("wait:events:resumed-by-last-event-id")
async def test_client_that_comes_back_is_told_only_what_it_does_not_know(stack: Stack) -> None:
    job_id = await submit(stack)
    wire = await stream(stack, job_id)
    _ = await head_of(wire), await block(wire)
    (first,) = parsed(await block(wire))
    wire.close()
    again = await stream(stack, job_id, first["id"])
    _ = await head_of(again), await block(again)
    _ = await stack.brokers["large"].fail(await stack.claim("large"), Failure("inference_error", "no", 500))
    told = await rest_of(again)
    told = [one for one in told if one["event"] != "progress"]
    assert [one["event"] for one in told] in (["status", "status", "done"], ["status", "done"])
    assert "pending" not in {one["data"]["status"] for one in told}

    before_done = await stream(stack, job_id, told[-2]["id"])
    _ = await head_of(before_done)
    assert [one["event"] for one in await rest_of(before_done)] == ["done"]
    assert " 204 " in (await head_of(await stream(stack, job_id, told[-1]["id"]))).split("\r\n")[0]


async def test_quiet_stream_has_comments_and_progress_says_the_place(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "COMMENT_SECONDS", 0.2)
    monkeypatch.setattr(events, "PROGRESS_SECONDS", 0.0)
    first, job_id = await submit(stack), await submit(stack)
    wire = await stream(stack, job_id)
    _ = await head_of(wire), await block(wire)
    assert parsed(await block(wire))[0]["data"]["queue_position"] == 1
    assert await block(wire) == ": still there\n\n"
    _ = await stack.brokers["large"].cancel(first)

    async def progress() -> bool:
        found = parsed(await block(wire))
        return (
            bool(found)
            and found[0]["event"] == "progress"
            and found[0]["data"] == {"job_id": job_id, "queue_position": 0}
        )

    assert await eventually(progress)


async def test_stream_of_a_job_that_is_not_the_callers_is_404(make_stack: MakeStack) -> None:
    stack = await make_stack(auth="header")
    made = await stack.client.post(URL, content=b"x", headers={"x-consumer": "a"})
    path = f"{made.headers['location']}/events"

    assert (await stack.client.get(path, headers={"x-consumer": "b"})).status_code == 404


async def test_shutdown_ends_streams(stack: Stack) -> None:
    wire = await stream(stack, await submit(stack))
    _ = await head_of(wire), await block(wire), await block(wire)
    stack.gateway.edge.waiters.close()

    assert await rest_of(wire) == []


@requirement("wait:events:one-subscription-for-all")
async def test_hundred_streams_share_one_subscription_and_are_all_told_within_a_second(stack: Stack) -> None:
    job_id = await submit(stack)
    wires = [await stream(stack, job_id) for _ in range(100)]
    for wire in wires:
        _ = await head_of(wire), await block(wire), await block(wire)
    assert len(stack.queue.listeners) == 1
    claim = await stack.claim("large")
    await stack.complete(claim, b"1")
    begun = time.monotonic()

    told = await asyncio.gather(*(rest_of(wire) for wire in wires))

    assert time.monotonic() - begun < 1
    assert {one[-1]["event"] for one in told} == {"done"}
    for wire in wires:
        wire.close()


@requirement("wait:any:no-verdict-missed-between-read-and-wait")
async def test_verdict_in_any_instant_around_the_wait_is_told_at_once(stack: Stack) -> None:
    longest = 0.0
    for number in range(1_000):
        posting = asyncio.create_task(stack.client.post(URL, content=b"x", headers={"prefer": "wait=30"}))
        assert await eventually(lambda number=number: len(stack.job_ids) > number, every=0.0001)
        for _ in range(number % 7):
            await asyncio.sleep(0)
        await stack.complete(await stack.claim("large"), b"1")
        begun = time.monotonic()
        assert (await posting).status_code == 200
        longest = max(longest, time.monotonic() - begun)

    assert longest < 0.9  # a look that was not woken comes after a second
