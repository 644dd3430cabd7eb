"""Every answer that is not a 2xx is a problem document with a stable code."""

from __future__ import annotations

import inspect
import json

import httpx
import pytest
from gateway_stack import Stack

from gateway import problems
from queuecore import errors
from queuecore.errors import BrokerUnavailable

pytestmark = pytest.mark.anyio

EXPORTED = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.QueueCoreError)]


@pytest.mark.parametrize("cls", EXPORTED, ids=lambda cls: cls.__name__)
def test_every_exception_of_queuecore_has_a_row(cls: type[errors.QueueCoreError]) -> None:
    assert cls in problems.TABLE
    assert 400 <= problems.TABLE[cls].status < 600


def test_exception_of_a_subclass_is_answered_as_its_nearest_base() -> None:
    class Worse(errors.BrokerUnavailable):
        """Nobody listed it."""

    assert problems.row_of(Worse("x")) == problems.TABLE[errors.BrokerUnavailable]
    assert problems.row_of(KeyError("x")).status == 500


@pytest.mark.parametrize(
    "cls", [errors.BrokerUnavailable, errors.OutcomeUnknown, errors.QueueFull, errors.BlobUnavailable]
)
def test_what_may_be_tried_again_says_when(cls: type[errors.QueueCoreError]) -> None:
    assert problems.TABLE[cls].retry_seconds
    assert cls.retryable


def test_lone_surrogates_in_a_detail_are_replaced() -> None:
    assert json.loads(problems.document(400, "c", "a\ud800b"))["detail"] == "a?b"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "route_not_found"),
        ("GET", "/", 404, "route_not_found"),
        ("GET", "/jobs/", 404, "route_not_found"),
        ("GET", "/jobs/echo", 405, "method_not_allowed"),
        ("PUT", "/jobs", 405, "method_not_allowed"),
        ("PATCH", "/jobs/echo/x/result", 405, "method_not_allowed"),
        ("OPTIONS", "/models", 405, "method_not_allowed"),
    ],
)
async def test_routers_refusals_are_problem_documents_too(
    stack: Stack, method: str, path: str, status: int, code: str
) -> None:
    response = await stack.client.request(method, path)

    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    assert response.json()["type"] == f"urn:relayq:problem:{code}"
    assert (status == 405) == ("allow" in response.headers)


async def test_redis_away_is_503_with_retry_after_on_every_route(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    url = (await stack.client.post("/jobs/echo?model=large", content=b"x")).headers["location"]

    async def away(*_: object, **__: object) -> None:
        raise BrokerUnavailable("10.0.0.7:6379 refused")

    monkeypatch.setattr("gateway.handlers.submit.SUBMIT_PAUSES_SECONDS", (0,))
    for broker in stack.brokers.values():
        for verb in ("get", "submit", "jobs", "counts", "position"):
            monkeypatch.setattr(broker, verb, away)
    monkeypatch.setattr(stack.queue.server, "records", away)
    for method, path in (
        ("GET", url), ("GET", f"{url}/result"), ("DELETE", url), ("GET", "/jobs"), ("GET", "/models"),
        ("POST", "/jobs/echo?model=large"),
    ):  # fmt: skip
        response = await stack.client.request(method, path, content=b"x" if method == "POST" else None)
        assert (response.status_code, response.json()["code"]) == (503, "queue_unavailable"), path
        assert response.headers["retry-after"]
        assert "10.0.0.7" not in response.text
    assert len(stack.objects) == 1


async def test_mistake_of_ours_is_500_in_the_same_form(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    async def mistaken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(stack.brokers["large"], "counts", mistaken)
    transport = httpx.ASGITransport(stack.gateway.public, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        response = await client.get("/models")

    assert (response.status_code, response.json()["code"]) == (500, "internal_error")
    assert response.headers["content-type"] == "application/problem+json"
