"""DELETE of a job, and the list of jobs over several queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import httpx
import pytest
from gateway_stack import Stack

from gateway.handlers.jobs import merged
from queuecore.broker import Broker, Cancelled, Failure, JobPage
from queuecore.errors import OutcomeUnknown
from queuecore.job import JobRecord, Status
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio


async def submit(stack: Stack, model: str = "large", service: str = "echo") -> str:
    query = {"model": model, "operation": "complete" if service == "chat" else "echo"}
    response = await stack.client.post(f"/jobs/{service}", params=query, content=b"x")
    assert response.status_code == 202, response.text
    return response.headers["location"]


# -- cancel -----------------------------------------------------------------------------------------------------


async def test_waiting_job_is_cancelled_at_once_and_again_the_same(stack: Stack) -> None:
    url = await submit(stack)
    first, second = await stack.client.delete(url), await stack.client.delete(url)

    assert first.status_code == second.status_code == 200
    assert first.json()["status"] == second.json()["status"] == "cancelled"
    assert first.headers["etag"] == second.headers["etag"]


async def test_running_job_is_flagged_and_ends_cancelled(stack: Stack) -> None:
    url = await submit(stack)
    claim = await stack.claim("large")

    response = await stack.client.delete(url)

    assert response.status_code == 202
    assert (response.json()["status"], response.json()["cancel_requested"]) == ("processing", True)
    await stack.complete(claim, b"1")
    assert (await stack.client.get(url)).json()["status"] == "cancelled"
    assert (await stack.client.delete(url)).status_code == 200


async def test_job_with_another_verdict_is_409(stack: Stack) -> None:
    url = await submit(stack)
    _ = await stack.brokers["large"].fail(await stack.claim("large"), Failure("inference_error", "no"))

    response = await stack.client.delete(url)

    assert (response.status_code, response.json()["code"]) == (409, "wrong_state")
    assert response.json()["job_status"] == "failed"


@requirement("unknown:cancel:repeat-changes-nothing")
async def test_lost_reply_of_cancel_is_repeated(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    url = await submit(stack)
    broker = stack.brokers["large"]
    cancel, calls = broker.cancel, 0

    async def lossy(job_id: str) -> Cancelled:
        nonlocal calls
        calls += 1
        cancelled = await cancel(job_id)
        if calls == 1:
            raise OutcomeUnknown("the reply was lost")
        return cancelled

    monkeypatch.setattr(broker, "cancel", lossy)
    response = await stack.client.delete(url)

    assert (response.status_code, response.json()["status"], calls) == (200, "cancelled", 2)


async def test_job_of_a_model_that_is_not_configured_any_more_is_readable_but_not_cancellable(stack: Stack) -> None:
    url = await submit(stack)
    del stack.brokers["large"]

    assert (await stack.client.get(url)).json()["status"] == "pending"
    response = await stack.client.delete(url)
    assert (response.status_code, response.json()["code"]) == (409, "model_not_configured")


# -- list -------------------------------------------------------------------------------------------------------


def ids(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [job["job_id"] for job in response.json()["jobs"]]


async def test_list_is_newest_first_over_all_models_and_its_cursor_is_stable(stack: Stack) -> None:
    made: list[str] = []
    for number in range(23):
        model, service = [("large", "echo"), ("meta-llama/Llama-3.1-8B", "chat")][number % 2]
        made.append((await submit(stack, model, service)).rpartition("/")[2])
        if number % 3:
            stack.queue.clock.advance(1)

    listed: list[str] = []
    cursor = ""
    pages = 0
    while True:
        page = await stack.client.get("/jobs", params={"limit": 5, **({"cursor": cursor} if cursor else {})})
        listed += ids(page)
        pages += 1
        stack.queue.clock.advance(1)
        _ = await submit(stack)  # newer jobs must not shift the pages that follow
        cursor = page.json()["cursor"]
        if not cursor:
            break

    assert listed == made[::-1]
    assert pages == 5


async def test_list_is_filtered_by_service_model_and_status(stack: Stack) -> None:
    large, small, chat = (
        await submit(stack), await submit(stack, "small"), await submit(stack, "meta-llama/Llama-3.1-8B", "chat")
    )  # fmt: skip
    _ = await stack.claim("large")
    names = [url.rpartition("/")[2] for url in (large, small, chat)]

    assert ids(await stack.client.get("/jobs?service_type=echo")) == [names[1], names[0]]
    assert ids(await stack.client.get("/jobs?model=meta-llama/Llama-3.1-8B")) == [names[2]]
    assert ids(await stack.client.get("/jobs?status=processing")) == [names[0]]
    assert ids(await stack.client.get("/jobs?status=pending&service_type=echo")) == [names[1]]
    assert ids(await stack.client.get("/jobs?service_type=chat&model=small")) == []


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "limit=x", "status=done", "model=none", "service_type=none", "cursor=x", "cursor=1:x",
     "state=pending", "limit=1&limit=2", "cursor=9999999999999999999999:01a22f96-42fc-7182-bb15-afc72ccf8f38"],
)  # fmt: skip
async def test_wrong_filter_is_refused_and_not_ignored(stack: Stack, query: str) -> None:
    response = await stack.client.get(f"/jobs?{query}")

    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")


class Pages:
    """A queue whose pages end early, as one that filters much away does."""

    def __init__(self, places: Sequence[int], step: int) -> None:
        self.places = sorted(places, reverse=True)
        self.step = step

    async def jobs(self, *, status: Any, tenant: Any, limit: int, cursor: str) -> JobPage:
        before = int(cursor.partition(":")[0]) if cursor else 1 << 60
        left = [place for place in self.places if place < before]
        page, rest = left[: min(limit, self.step)], left[min(limit, self.step) :]
        records = [JobRecord(id=f"id{place}", status="pending", created_at=place) for place in page if place % 3]
        return JobPage(records, f"{page[-1]}:id{page[-1]}" if rest and page else "")


@pytest.mark.parametrize("steps", [(1, 1), (2, 7), (7, 2), (50, 50)])
@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_no_job_is_skipped_or_repeated_when_queues_end_their_pages_early(
    steps: tuple[int, int], limit: int
) -> None:
    first, second = Pages(range(1, 40, 2), steps[0]), Pages(range(2, 60, 2), steps[1])
    brokers = cast("list[Broker]", [first, second])
    listed: list[int] = []
    cursor = ""
    for _ in range(200):
        records, cursor = await merged(brokers, Status.PENDING, "", limit, cursor)
        assert len(records) <= limit
        listed += [record.created_at for record in records]
        if not cursor:
            break

    assert listed == sorted((place for place in [*first.places, *second.places] if place % 3), reverse=True)
