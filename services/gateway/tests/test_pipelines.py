"""The routes of pipelines: a run is submitted, followed through its stages, fetched, cancelled and deleted."""

from __future__ import annotations

import httpx
import pytest
from gateway_stack import MODELS, MakeStack, Stack

from queuecore.broker import Failure
from queuecore.job import Status
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio
STAGES = """models:
  store: {service_type: documents, operations: {store: {url: /v1/store, request: raw}}, accepted_types: ["text/*"]}
  embed: {service_type: documents, operations: {embed: {url: /v1/embed, request: json}}}
"""
PIPELINE = MODELS.replace("models:\n", STAGES, 1) + "pipelines: {ingest: {stages: [store, embed]}}\n"


@pytest.fixture
async def pipes(make_stack: MakeStack) -> Stack:
    return await make_stack(models=PIPELINE)


async def submit(stack: Stack, **headers: str) -> httpx.Response:
    headers = {"content-type": "text/plain", **headers}
    return await stack.client.post("/pipelines/ingest", content=b"hello", headers=headers, params={"lang": "en"})


@requirement("pipeline:status:every-stage")
async def test_a_run_is_followed_through_its_stages_to_its_result(pipes: Stack) -> None:
    made = await submit(pipes)
    assert made.status_code == 202, made.text
    url, document = made.headers["location"], made.json()
    assert url == f"/pipelines/ingest/{document['job_id']}" == document["links"]["self"]
    assert (document["pipeline"], document["stage"], document["model"]) == ("ingest", "store", "store")
    assert [(one["stage"], one["status"]) for one in document["stages"]] == [("store", "pending"), ("embed", "waiting")]

    first = await pipes.claim("store")
    assert (first.record.inference_url, first.record.params) == ("/v1/store", '{"lang":"en"}')
    await pipes.complete(first, b"stored", "text/plain")
    document = (await pipes.client.get(url)).json()
    assert (document["status"], document["stage"], document["operation"], document["result"]) == (
        "pending", "embed", "embed", None,
    )  # fmt: skip
    assert [(one["status"], one["attempts"]) for one in document["stages"]] == [("completed", 1), ("pending", 0)]
    assert document["stages"][0]["finished_at"] == document["stages"][1]["queued_at"]
    assert (await pipes.client.get(f"{url}/result")).status_code == 409

    second = await pipes.claim("embed")
    assert (second.record.params, second.record.input_size) == ('{"lang":"en"}', 6), "params go to every stage"
    await pipes.complete(second, b"[1]")
    document = (await pipes.client.get(url)).json()
    assert (document["status"], document["result"]["url"]) == ("completed", f"{url}/result")
    assert [one["status"] for one in document["stages"]] == ["completed", "completed"]
    assert (await pipes.client.get(f"{url}/result")).content == b"[1]"
    events = await pipes.client.get(f"{url}/events")
    assert "event: done" in events.text

    assert (await pipes.client.delete(f"{url}/result")).status_code == 204
    assert pipes.objects == {}, "what the stages handed on is gone, too"
    assert (await pipes.client.get(url)).status_code == 410


async def test_a_run_is_no_job_and_a_job_of_a_stage_is_no_run(pipes: Stack) -> None:
    run = (await submit(pipes)).json()["job_id"]
    job = await pipes.client.post("/jobs/documents?model=store", content=b"x", headers={"content-type": "text/plain"})
    assert (await pipes.client.get(f"/jobs/documents/{run}")).status_code == 404
    assert (await pipes.client.get(f"/pipelines/ingest/{job.json()['job_id']}")).status_code == 404
    assert (await pipes.client.get(f"/pipelines/other/{run}")).status_code == 404
    await pipes.complete(await pipes.claim("store"), b"1", "text/plain")
    await pipes.complete(await pipes.claim("store"), b"1", "text/plain")
    assert (await pipes.client.get(job.headers["location"])).json()["status"] == "completed"


async def test_a_run_is_cancelled_wherever_it_is(pipes: Stack) -> None:
    waiting, running = (await submit(pipes)).headers["location"], (await submit(pipes)).headers["location"]
    for _ in range(2):
        await pipes.complete(await pipes.claim("store"), b"1", "text/plain")
    assert (await pipes.client.delete(waiting)).json()["status"] == "cancelled"
    claim = await pipes.claim("embed")
    assert (await pipes.client.delete(running)).status_code == 202
    assert await pipes.brokers["embed"].fail(claim, Failure("inference_error", "no")) is Status.CANCELLED
    assert (await pipes.client.get(running)).json()["status"] == "cancelled"


@pytest.mark.parametrize(
    ("path", "params", "status", "code"),
    [
        ("/pipelines/nothing", {}, 404, "pipeline_not_found"),
        ("/pipelines/ingest", {"model": "store"}, 400, "invalid_request"),
        ("/pipelines/ingest", {"operation": "store"}, 400, "invalid_request"),
        ("/pipelines/ingest", {"priority": "urgent"}, 400, "invalid_request"),
        ("/jobs/documents", {}, 400, "model_missing"),
    ],
)
async def test_what_a_run_may_not_say_is_refused_in_words(
    pipes: Stack, path: str, params: dict[str, str], status: int, code: str
) -> None:
    headers = {"content-type": "text/plain"}
    answer = await pipes.client.post(path, params=params, content=b"x", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert pipes.objects == {}


async def test_the_first_stage_says_what_may_be_submitted(pipes: Stack) -> None:
    answer = await pipes.client.post("/pipelines/ingest", content=b"\x00\x01", headers={"content-type": "audio/wav"})
    assert answer.status_code == 415


async def test_a_replay_finds_its_run_at_the_stage_where_it_is(pipes: Stack) -> None:
    first = await submit(pipes, **{"idempotency-key": "k"})
    await pipes.complete(await pipes.claim("store"), b"1", "text/plain")
    again = await submit(pipes, **{"idempotency-key": "k"})
    assert (again.status_code, again.json()["job_id"]) == (200, first.json()["job_id"])
    assert again.json()["stage"] == "embed"
