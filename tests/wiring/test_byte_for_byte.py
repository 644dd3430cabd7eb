"""What a client sends as params and what a model answers are nobody's to read: they arrive byte for byte (case C10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import httpx
import pytest

from queuecore.broker import Worker
from queuecore.names import new_claim_id
from queuecore.testing.raw_http import RawExchange, RawHttpServer
from queuecore.testing.requirement import requirement
from queuecore.testing.yard import Yard
from relay.jsonbody import json_body

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

VALUES: Final = (
    '"nan":NaN',
    '"infinity":[-Infinity,1e400,1.50]',
    r'"surrogate":"a \ud800 lone one"',
    '"integer":9223372036854775807',
    '"longer":1785000000123456789012345678901234567890',
    '"empty_list":[]',
    '"empty_object":{}',
    r'"nested":{"b":  [1.50, [ ], {"a":null}], "a": "\u00e9/\/" }',
    r'"slash":"meta-llama/Llama-3.1-8B \"quoted\" \\ \u0000"',
)
PARAMS: Final = "{" + ",".join(VALUES) + "}"
INPUT: Final = r'[NaN,1.50,"\ud800",[]]'
ANSWER: Final = PARAMS.encode() + b"\r\n\xff\xfe\x00 not even text"


async def answer(exchange: RawExchange) -> None:
    _ = await exchange.read_body()
    await exchange.answer("200 OK", ANSWER, "Content-Type: application/json")


@requirement("bytes:params-and-results:as-they-were-sent")
@pytest.mark.parametrize("way", ["form", "query", "json"])
async def test_params_survive_three_deaths_and_the_result_is_what_the_model_sent(yard: Yard, way: str) -> None:
    gateway = await yard.gateway()
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        match way:
            case "form":
                taken = await http.post("/jobs/echo", data={"params": PARAMS}, files={"file": b"x"})
            case "query":
                taken = await http.post("/jobs/echo", params={"params": PARAMS}, content=b"x")
            case _:
                body = f'{{"input":{INPUT},{PARAMS[1:]}'
                taken = await http.post("/jobs/echo", content=body, headers={"content-type": "application/json"})
        assert taken.status_code == 202, taken.text
        record = await yard.status(taken.json()["job_id"])
        assert record.params == PARAMS
        for deaths in range(1, 4):
            assert await yard.broker.claim(Worker("w", "gone:1"), new_claim_id()) is not None
            await yard.reap_the_dead()
            assert (await yard.status(record.id)).reaps == deaths
        assert (await yard.status(record.id)).params == PARAMS

        async with RawHttpServer(answer) as model:
            _ = await yard.relay(RELAY_INFERENCE_URL=model.url)
            ended = await yard.finished(record.id)
        result = await http.get(f"/jobs/echo/{record.id}/result")

    assert ended.params == PARAMS
    assert result.content == ANSWER
    if way == "json":
        async with yard.store.get(record.input_key) as chunks:
            assert b"".join([chunk async for chunk in chunks]) == INPUT.encode()


@requirement("bytes:params-and-results:as-they-were-sent")
async def test_a_model_that_is_asked_in_json_is_asked_in_the_clients_words() -> None:
    async def once() -> AsyncIterator[bytes]:
        yield INPUT.encode()

    body = await json_body(PARAMS, "application/json", len(INPUT), once())
    sent = b"".join([chunk async for chunk in body.chunks]).decode()

    assert f'"input":{INPUT}' in sent
    for value in VALUES:
        assert value in sent
