"""schemathesis against a live gateway: whatever the document allows or forbids, no 5xx and nothing undocumented.

A relay in this process gives verdicts meanwhile, so that the links from a submission reach results, ranges included.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from gateway_process import Process, gateway

from queuecore.blobs import BlobStore
from queuecore.broker import Broker, Claim, Failure, Result, Worker
from queuecore.config import load_config
from queuecore.job import result_key
from queuecore.names import new_claim_id
from queuecore.redis import open_redis
from queuecore.settings import CommonSettings, Secret
from queuecore.storage import open_store
from queuecore.testing.clock import eventually
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

MODELS: Final = """
models:
  large: {service_type: echo, operations: {echo: /echo, other: /other}, default: true}
  small: {service_type: echo, operations: {echo: /echo, other: /other}, max_upload_bytes: 1000}
  kept: {service_type: kept, operations: {echo: /echo}, cache_seconds: 900}
  chunk: {service_type: ingestion, operations: {chunk: /chunk}}
  embed: {service_type: ingestion, operations: {embed: /embed}}
pipelines:
  ingest: {stages: [chunk, embed]}
"""
RESULT: Final = "/jobs/{service_type}/{id}/result"
CHECKS: Final = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "response_headers_conformance",
)  # fmt: skip


@asynccontextmanager
async def relay(directory: Path, redis_url: str) -> AsyncGenerator[None, None]:
    """Ends every job: one of three fails, the others get a result."""
    common = CommonSettings(redis_url=Secret(redis_url), blobs_url=f"file://{directory}/blobs")
    config = load_config(str(directory / "wanted.yaml"))
    async with AsyncExitStack() as stack:
        queue = await open_redis(common, name="relay")
        _ = stack.push_async_callback(queue.aclose)
        store = await open_store(common)
        _ = stack.push_async_callback(store.aclose)
        tasks = [asyncio.create_task(_serve(queue.broker(*model), store)) for model in config.models.items()]
        try:
            yield
        finally:
            for task in tasks:
                _ = task.cancel()
            _ = await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(broker: Broker, store: BlobStore) -> None:
    number = 0
    while True:
        claim = await broker.claim(Worker("relay"), new_claim_id(), wait_seconds=1)
        if claim is None:
            continue
        number += 1
        if number % 3 == 2:
            _ = await broker.fail(claim, Failure("inference_error", "it said no", http_status=400))
        else:
            await _complete(broker, store, claim)


async def _complete(broker: Broker, store: BlobStore, claim: Claim) -> None:
    content = b'{"text": "hello"}'
    key = result_key(claim.job_id, claim.fence, claim.claim_id)

    async def chunks() -> AsyncIterator[bytes]:
        yield content

    _ = await store.put(key, chunks())
    digest = hashlib.sha256(content).hexdigest()
    _ = await broker.complete(claim, Result(key, len(content), "application/json", digest))


async def finished(process: Process) -> str:
    """A job with a result."""
    for _ in range(3):
        url = (await process.client.post("/jobs/echo", content=b"x")).headers["location"]

        async def over(url: str = url) -> bool:
            return "retry-after" not in (await process.client.get(url)).headers

        assert await eventually(over, within=20)
        document = (await process.client.get(url)).json()
        if document["status"] == "completed":
            return document["job_id"]
    raise AssertionError("no job was completed")


def patient(document: dict[str, Any]) -> dict[str, Any]:
    """The document with waits of a second at most, and webhooks that lead nowhere."""
    document["components"]["schemas"]["CallbackUrl"] = {"type": "string", "enum": ["https://receiver.invalid/hook"]}
    for item in document["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", ()) if isinstance(operation, dict) else ():
                if parameter.get("name") == "wait":
                    parameter["schema"]["maximum"] = 1
                if parameter.get("name") == "Prefer":
                    parameter["examples"]["half"]["value"] = "wait=1"
    return document


def narrowed(document: dict[str, Any], job_id: str) -> dict[str, Any]:
    """The document so that more of what is tried is taken: options only in the body, a job that there is, no key twice;
    and every job runs soon, so that no stream of events is endless.
    """
    for submit in (document["paths"][path]["post"] for path in ("/jobs/{service_type}", "/pipelines/{pipeline}")):
        submit["parameters"] = [one for one in submit["parameters"] if "$ref" not in one]
        for parameter in submit["parameters"]:
            if parameter["name"] == "Idempotency-Key":
                _ = parameter.pop("examples", None)
        for kind in ("multipart/form-data", "application/json"):
            _ = submit["requestBody"]["content"][kind]["schema"]["properties"].pop("not_before", None)
    document["components"]["parameters"]["JobId"]["schema"]["examples"] = [job_id]
    document["paths"][RESULT] = document["paths"].pop(RESULT)  # last, for it has a DELETE
    return document


async def explore(process: Process, document: dict[str, Any], directory: Path, *options: str) -> tuple[int, str]:
    """schemathesis's exit code and what it printed."""
    _ = (directory / "openapi.json").write_text(json.dumps(document), "utf-8")
    child = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("schemathesis")), "run", "openapi.json", "--url", process.public,
        "--checks", ",".join(CHECKS), "--generation-deterministic", "--no-color", "--no-shrink",
        "--continue-on-failure", "--request-timeout", "70", "--suppress-health-check", "all", *options,
        cwd=directory, env={"PATH": os.environ["PATH"], "HOME": str(directory)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
    assert child.returncode is not None
    return child.returncode, output.decode()


async def answers(process: Process) -> Counter[tuple[str, str, int]]:
    """How often each (method, route, status) was answered, by the gateway's own count."""
    text = (await process.client.get(f"{process.metrics}/metrics")).text
    found = re.findall(
        r'^relayq_http_requests_total\{method="(\w+)",route="([^"]*)",status="(\d+)"\} (\S+)$', text, re.MULTILINE
    )
    return Counter({(method, route, int(status)): int(float(count)) for method, route, status, count in found})


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    """A live gateway with a relay behind it."""
    models = tmp_path / "wanted.yaml"
    _ = models.write_text(MODELS, "utf-8")
    with ValkeyProcess() as server:
        async with gateway(
            tmp_path,
            server.url,
            MODELS_FILE=str(models),
            GATEWAY_PRIORITY_HEADER="X-Priority",
            GATEWAY_READ_CACHE_SECONDS="1",
        ) as process:
            await process.ready()
            async with relay(tmp_path, server.url):
                yield process


async def test_whatever_the_document_allows_or_forbids_is_answered_as_it_says(process: Process, tmp_path: Path) -> None:
    document = patient((await process.client.get("/openapi.json")).json())

    code, output = await explore(process, document, tmp_path, "--max-examples", "5", "--phases", "coverage,fuzzing")

    assert code == 0, output
    seen = await answers(process)
    assert {route for _, route, _ in seen} >= set(document["paths"]), output


async def test_jobs_that_are_taken_are_described_to_their_results(process: Process, tmp_path: Path) -> None:
    document = narrowed(patient((await process.client.get("/openapi.json")).json()), await finished(process))

    code, output = await explore(process, document, tmp_path, "--max-examples", "15")

    assert code == 0, output
    seen = await answers(process)
    job = "/jobs/{service_type}/{id}"
    for expected in (
        ("POST", "/jobs/{service_type}", 202), ("POST", "/jobs/{service_type}", 400), ("GET", "/jobs", 200),
        ("GET", job, 200), ("GET", job, 404), ("DELETE", job, 409), ("GET", f"{job}/events", 200),
        ("GET", RESULT, 206), ("GET", RESULT, 404), ("DELETE", RESULT, 204), ("POST", "/pipelines/{pipeline}", 202),
        ("GET", "/pipelines/{pipeline}/{id}", 200),
    ):  # fmt: skip
        assert seen[expected], f"{expected} was never answered\n{output}"


async def test_answer_that_is_not_described_is_found(process: Process, tmp_path: Path) -> None:
    document = patient((await process.client.get("/openapi.json")).json())
    del document["paths"]["/jobs"]["get"]["responses"]["400"]
    document["components"]["schemas"]["ModelState"]["properties"]["name"] = {"type": "integer"}

    code, output = await explore(
        process, document, tmp_path, "--max-examples", "5", "--phases", "coverage", "--include-path", "/jobs",
        "--include-path", "/models",
    )  # fmt: skip

    assert code == 1
    assert "Undocumented status code" in output
    assert "Response violates schema" in output
