"""Traces through real processes: from the client's request to the verdict, and with a collector that is dead."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from queuecore.clock import monotonic, wall_ns
from queuecore.testing.clock import eventually
from queuecore.testing.otlp import Collector
from queuecore.testing.raw_http import RawExchange, RawHttpServer
from queuecore.testing.requirement import requirement
from queuecore.testing.yard import Process, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def post(url: str, traceparent: str) -> dict[str, Any]:
    return post_to(f"{url}/jobs/echo", traceparent)


def post_to(url: str, traceparent: str) -> dict[str, Any]:
    request = urllib.request.Request(url, b"hello", {"traceparent": traceparent}, method="POST")
    request.add_header("content-type", "application/octet-stream")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def lines_with(process: Process, event: str) -> list[dict[str, Any]]:
    return [line for line in process.lines if line["event"] == event]


async def test_one_request_can_be_followed_from_the_client_to_the_verdict(yard: Yard, collector: Collector) -> None:
    gateway = await yard.gateway(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_BSP_SCHEDULE_DELAY="100")
    job_id = (await asyncio.to_thread(post, gateway.url, f"00-{TRACE}-{SPAN}-01"))["job_id"]
    relay = await yard.relay(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    assert await relay.ended() == 0
    _ = await eventually(lambda: len(collector.spans) == 4, within=10)

    assert collector.names == ["claim m", "complete m", "process m", "submit m"]
    submit, run = collector.named("submit m"), collector.named("process m")
    assert (submit.trace_id, submit.parent) == (TRACE, SPAN)
    assert run.links == (submit.place,)
    assert {span.attributes["messaging.message.id"] for span in collector.spans} == {job_id}
    services = {span.name: span.resource["service.name"] for span in collector.spans}
    assert (services["submit m"], services["process m"]) == ("relayq-gateway", "relayq-relay")
    for process, event in ((gateway, "job.submitted"), (relay, "job.claimed"), (relay, "job.completed")):
        (line,) = lines_with(process, event)
        assert (line["job_id"], line["trace_id"]) == (job_id, TRACE)


@requirement("telemetry:trace:submit-to-webhook")
async def test_each_attempt_of_a_webhook_is_a_span_linked_to_the_submission(yard: Yard, collector: Collector) -> None:
    asked: list[str] = []

    async def receiver(exchange: RawExchange) -> None:
        _ = await exchange.read_body()
        asked.append(exchange.header("traceparent") or "")
        await exchange.answer("500 Internal Server Error" if len(asked) == 1 else "204 No Content")

    async with RawHttpServer(receiver) as server:
        gateway = await yard.gateway(
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_BSP_SCHEDULE_DELAY="100", GATEWAY_WEBHOOK_ALLOW="127.0.0.1"
        )
        url = f"{gateway.url}/jobs/echo?callback_url={server.url}/hook"
        job_id = (await asyncio.to_thread(post_to, url, f"00-{TRACE}-{SPAN}-01"))["job_id"]
        _ = await yard.broker.cancel(job_id)
        _ = await eventually(lambda: len(asked) == 2, within=20)
        _ = await eventually(lambda: collector.names.count("deliver m") == 2, within=10)

    attempts = [span for span in collector.spans if span.name == "deliver m"]
    assert {span.links for span in attempts} == {(collector.named("submit m").place,)}
    assert sorted(span.attributes["http.response.status_code"] for span in attempts) == [204, 500]
    assert sorted(asked) == sorted(f"00-{span.trace_id}-{span.span_id}-01" for span in attempts)


@pytest.mark.parametrize("mode", ["hang", "refuse"])
async def test_a_dead_collector_holds_up_neither_the_verdict_nor_the_process(yard: Yard, mode: str) -> None:
    with Collector() as collector:
        collector.mode = "hang" if mode == "hang" else "refuse"
        job_id = await yard.submit(b"hello")
        relay = await yard.relay(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
        assert await relay.ended() == 0
        ended_ms = wall_ns() / 1e6
        record = await yard.check_one_good_end(job_id, b"hello")

    (line,) = lines_with(relay, "job.completed")
    said_ms = datetime.fromisoformat(line["ts"]).timestamp() * 1000
    assert record.finished_at is not None
    assert record.finished_at <= said_ms + 50, "the verdict came first"
    assert ended_ms - said_ms < 3000


async def test_a_relay_that_finds_nothing_to_do_sends_nothing_and_waits_for_no_collector(
    yard: Yard, collector: Collector
) -> None:
    collector.mode = "hang"
    relay = await yard.relay(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, RELAY_EXIT_WHEN_EMPTY="true")
    began = monotonic()
    assert await relay.ended() == 0

    assert monotonic() - began < 5
    assert collector.requests == 0


@pytest.mark.parametrize("service", ["gateway", "relay"])
async def test_an_endpoint_that_is_no_url_stops_the_start_and_is_named(yard: Yard, service: str) -> None:
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317", "RELAY_MODEL": "m", "GATEWAY_AUTH": "none"}
    if service == "gateway":
        _ = settings.pop("RELAY_MODEL")
    process = await yard.start(service, settings)

    assert await process.ended() == 1
    assert "OTEL_EXPORTER_OTLP_ENDPOINT: an http" in process.log.read_text("utf-8")
