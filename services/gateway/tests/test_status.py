"""GET of a job: the document, its ETag, the long poll, and who may see what."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from gateway_stack import MakeStack, Stack

from gateway.documents import etag_of, matches, status_document
from queuecore.broker import Failure
from queuecore.job import JobRecord
from queuecore.names import new_job_id
from queuecore.testing.clock import eventually
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


async def submit(stack: Stack, headers: dict[str, str] | None = None) -> str:
    response = await stack.client.post("/jobs/echo?model=large", content=b"x", headers=headers)
    assert response.status_code == 202, response.text
    return response.headers["location"]


def waiting(stack: Stack) -> int:
    return stack.gateway.edge.waiters._count


# -- the document -----------------------------------------------------------------------------------------------


async def test_document_follows_the_job_and_its_etag_changes_with_it(stack: Stack) -> None:
    url = await submit(stack)
    pending = await stack.client.get(url)
    claim = await stack.claim("large")
    stack.queue.clock.advance(1500)
    processing = await stack.client.get(url)
    await stack.complete(claim, b'{"text": "hello"}')
    completed = await stack.client.get(url)

    assert [one.json()["status"] for one in (pending, processing, completed)] == ["pending", "processing", "completed"]
    assert pending.json()["queue_position"] == 0
    assert processing.json()["queue_position"] is None
    assert processing.json()["attempts"] == 1
    assert processing.json()["links"]["cancel"] == url
    assert pending.headers["retry-after"] == processing.headers["retry-after"] == "1"
    assert "retry-after" not in completed.headers
    assert len({one.headers["etag"] for one in (pending, processing, completed)}) == 3
    document = completed.json()
    assert document["result"] == {
        "url": f"{url}/result", "size": 17, "content_type": "application/json",
        "sha256": "0cb2e50d3b2ef38b31ed8cd4a6c3a4b9bd9f9a7ed1a5dbbbba05a5b4ac1c4b1b",
    } | {"sha256": document["result"]["sha256"]}  # fmt: skip
    assert len(document["result"]["sha256"]) == 64
    assert document["finished_at"] == "2027-01-15T08:00:01.500Z"
    assert document["expires_at"] == "2027-01-16T08:00:01.500Z"
    assert document["error"] is None


async def test_failure_is_told_with_code_message_and_status(stack: Stack) -> None:
    url = await submit(stack)
    claim = await stack.claim("large")
    _ = await stack.brokers["large"].fail(claim, Failure("inference_error", "the model said no", 503))

    document = (await stack.client.get(url)).json()

    assert document["status"] == "failed"
    assert document["error"] == {"code": "inference_error", "message": "the model said no", "http_status": 503}
    assert document["result"] is None


async def test_place_in_the_queue_is_shown_but_makes_no_new_version(stack: Stack) -> None:
    first, second = await submit(stack), await submit(stack)
    before = await stack.client.get(second)
    _ = await stack.claim("large")
    after = await stack.client.get(second)

    assert (before.json()["queue_position"], after.json()["queue_position"]) == (1, 0)
    assert before.headers["etag"] == after.headers["etag"]
    assert first != second


async def test_unchanged_document_is_304_with_its_etag(stack: Stack) -> None:
    url = await submit(stack)
    etag = (await stack.client.get(url)).headers["etag"]

    for value in (etag, f'"x", {etag}', etag.removeprefix("W/"), "*"):
        response = await stack.client.get(url, headers={"if-none-match": value})
        assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", etag)
    assert (await stack.client.get(url, headers={"if-none-match": '"other"'})).status_code == 200


def test_every_field_but_the_place_in_the_queue_makes_a_new_version() -> None:
    record = JobRecord(id=new_job_id(), status="pending", service_type="s", model="m", created_at=1)
    document = status_document(record)
    for name in document:
        changed = document | {name: "changed"}
        assert (etag_of(changed) == etag_of(document)) == (name == "queue_position"), name
    assert matches(etag_of(document), etag_of(document))


async def test_unknown_malformed_and_misplaced_ids_are_404(stack: Stack) -> None:
    url = await submit(stack)
    job_id = url.rpartition("/")[2]
    for path in (
        f"/jobs/echo/{new_job_id()}", "/jobs/echo/x", f"/jobs/chat/{job_id}", f"/jobs/echo/{job_id.upper()}",
        "/jobs/echo/..%2f..%2fetc", "/jobs/echo/job:%00",
    ):  # fmt: skip
        response = await stack.client.get(path)
        assert response.status_code == 404, path
        assert response.json()["code"] in {"job_not_found", "route_not_found"}


async def test_job_past_its_retention_is_410_with_its_cause(stack: Stack) -> None:
    url = await submit(stack)
    await stack.complete(await stack.claim("large"), b"1")
    stack.queue.clock.advance(86_400_001)

    response = await stack.client.get(url)

    assert (response.status_code, response.json()["code"]) == (410, "job_expired")
    assert response.json()["job"]["status"] == "completed"
    assert (await stack.client.get(url.replace("echo", "chat"))).status_code == 404


async def test_another_tenants_job_is_404_everywhere_even_past_its_retention(make_stack: MakeStack) -> None:
    stack = await make_stack(auth="header")
    blue, red = {"x-consumer": "blue"}, {"x-consumer": "red"}
    url = await submit(stack, blue)

    async def answers(headers: dict[str, str]) -> list[int]:
        return [
            (await stack.client.request(method, path, headers=headers)).status_code
            for method, path in (("GET", url), ("GET", f"{url}/result"), ("DELETE", url))
        ]

    assert await answers(red) == [404, 404, 404]
    assert (await stack.client.get("/jobs", headers=red)).json()["jobs"] == []
    assert len((await stack.client.get("/jobs", headers=blue)).json()["jobs"]) == 1
    assert await answers(blue) == [200, 409, 200]
    stack.queue.clock.advance(86_400_001)
    assert (await stack.client.get(url, headers=red)).status_code == 404
    assert (await stack.client.get(url, headers=blue)).status_code == 410
    assert (await stack.client.get(url)).status_code == 401
    assert (await stack.client.get("/models")).status_code == 401


@pytest.mark.parametrize("query", ["wait=61", "wait=-1", "wait=1.5", "wait=x", "wait=1&wait=2", "wiat=1", "wait=1_0"])
async def test_wait_is_a_whole_number_of_seconds_up_to_60(stack: Stack, query: str) -> None:
    response = await stack.client.get(f"{await submit(stack)}?{query}")

    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")


# -- the long poll ----------------------------------------------------------------------------------------------


async def test_long_poll_answers_when_the_document_differs(stack: Stack) -> None:
    url = await submit(stack)
    etag = (await stack.client.get(url)).headers["etag"]
    begun = time.monotonic()
    poll = asyncio.create_task(stack.client.get(f"{url}?wait=30", headers={"if-none-match": etag}))
    _ = await eventually(lambda: waiting(stack) == 1)

    _ = await stack.claim("large")
    response = await poll

    assert (response.status_code, response.json()["status"]) == (200, "processing")
    assert response.headers["etag"] != etag
    assert time.monotonic() - begun < 5
    assert waiting(stack) == 0


async def test_long_poll_that_sees_no_change_is_304_at_its_end(stack: Stack) -> None:
    url = await submit(stack)
    etag = (await stack.client.get(url)).headers["etag"]
    begun = time.monotonic()

    response = await stack.client.get(f"{url}?wait=1", headers={"if-none-match": etag})

    assert (response.status_code, response.headers["etag"]) == (304, etag)
    assert 0.9 < time.monotonic() - begun < 3


async def test_long_poll_with_an_old_etag_or_none_answers_at_once(stack: Stack) -> None:
    url = await submit(stack)
    begun = time.monotonic()

    assert (await stack.client.get(f"{url}?wait=30", headers={"if-none-match": '"old"'})).status_code == 200
    assert (await stack.client.get(f"{url}?wait=30")).status_code == 200
    assert time.monotonic() - begun < 2


async def test_change_between_the_read_and_the_wait_is_not_missed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case K2: the poll registers first, so that what happens right after its read wakes it."""
    monkeypatch.setattr("gateway.waiters.FIRST_LOOK_SECONDS", 60)
    reader = stack.gateway.edge.records
    read = reader.get
    for _ in range(100):
        url = await submit(stack)
        etag = (await stack.client.get(url)).headers["etag"]

        async def read_then_change(job_id: str) -> JobRecord:
            record = await read(job_id)
            if record.status == "pending":
                _ = await stack.claim("large")
            return record

        with monkeypatch.context() as patch:
            patch.setattr(reader, "get", read_then_change)
            begun = time.monotonic()
            response = await stack.client.get(f"{url}?wait=20", headers={"if-none-match": etag})
        assert response.json()["status"] == "processing"
        assert time.monotonic() - begun < 1


@requirement("notice:get:completion-seen-without-signal")
async def test_lost_wake_up_costs_about_a_second(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    url = await submit(stack)
    etag = (await stack.client.get(url)).headers["etag"]

    def deaf(job_id: str) -> None:
        """The wake-up is lost on its way."""

    monkeypatch.setattr(stack.gateway.edge.waiters, "wake", deaf)
    poll = asyncio.create_task(stack.client.get(f"{url}?wait=30", headers={"if-none-match": etag}))
    _ = await eventually(lambda: waiting(stack) == 1)
    begun = time.monotonic()
    _ = await stack.claim("large")

    assert (await poll).status_code == 200
    assert time.monotonic() - begun < 3


async def test_wake_up_is_used_up_by_the_wait_that_saw_it(stack: Stack) -> None:
    with stack.gateway.edge.waiters.waiting("job") as waiter:
        stack.gateway.edge.waiters.wake("job")
        begun = time.monotonic()
        await waiter.wait(10)
        assert time.monotonic() - begun < 0.5

        await waiter.wait(0.1)
        assert time.monotonic() - begun >= 0.1


async def test_too_many_waiters_are_503_and_a_plain_get_still_works(make_stack: MakeStack) -> None:
    stack = await make_stack(max_waiters=1)
    url = await submit(stack)
    headers = {"if-none-match": (await stack.client.get(url)).headers["etag"]}
    poll = asyncio.create_task(stack.client.get(f"{url}?wait=30", headers=headers))
    _ = await eventually(lambda: waiting(stack) == 1)

    refused = await stack.client.get(f"{url}?wait=30", headers=headers)

    assert (refused.status_code, refused.json()["code"]) == (503, "too_many_waiters")
    assert refused.headers["retry-after"]
    assert (await stack.client.get(url)).status_code == 200
    _ = await stack.claim("large")
    assert (await poll).status_code == 200


async def test_a_thousand_waiters_are_woken_by_one_subscription(stack: Stack) -> None:
    urls = [await submit(stack) for _ in range(10)]
    etags = [(await stack.client.get(url)).headers["etag"] for url in urls]
    polls = [
        asyncio.create_task(stack.client.get(f"{url}?wait=60", headers={"if-none-match": etag}))
        for _ in range(100)
        for url, etag in zip(urls, etags, strict=True)
    ]
    _ = await eventually(lambda: waiting(stack) == 1000, within=20)
    assert len(stack.queue.listeners) == 1

    begun = time.monotonic()
    for _ in urls:
        _ = await stack.claim("large")
    responses: list[httpx.Response] = await asyncio.gather(*polls)

    assert {one.json()["status"] for one in responses} == {"processing"}
    assert time.monotonic() - begun < 20
    assert waiting(stack) == 0


async def test_stopping_ends_every_long_poll_at_once(stack: Stack) -> None:
    url = await submit(stack)
    headers = {"if-none-match": (await stack.client.get(url)).headers["etag"]}
    poll = asyncio.create_task(stack.client.get(f"{url}?wait=60", headers=headers))
    _ = await eventually(lambda: waiting(stack) == 1)

    stack.gateway.edge.waiters.close()

    async with asyncio.timeout(2):
        assert (await poll).status_code == 304
