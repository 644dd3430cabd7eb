"""A model that answers line by line is heard through the event stream while it runs, and kept whole."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx
import pytest

from queuecore.testing.requirement import requirement
from queuecore.testing.yard import Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

LINES: Final = 8
WHOLE: Final = b"".join(b'{"line": %d, "of": %d}\n' % (number, LINES) for number in range(1, LINES + 1))


async def events(http: httpx.AsyncClient, path: str) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    async with http.stream("GET", path) as answer:
        assert answer.status_code == 200
        name = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((name, json.loads(line.removeprefix("data: "))))
    return found


@requirement("wait:events:model-is-heard")
async def test_lines_are_heard_while_the_model_writes_and_the_result_is_all_of_them(yard: Yard) -> None:
    gateway = await yard.gateway()
    job_id = await yard.submit(mock_ndjson_lines=LINES, mock_drip_seconds=0.015)
    _ = await yard.relay()

    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        told = await events(http, f"/jobs/echo/{job_id}/events")
        result = await http.get(f"/jobs/echo/{job_id}/result")

    heard = [data for name, data in told if name == "progress" and "text" in data]
    assert [name for name, _ in told][-1] == "done"
    assert 2 <= len(heard) <= LINES
    assert [json.loads(one["text"])["line"] for one in heard] == [one["sequence"] for one in heard]
    assert heard == sorted(heard, key=lambda one: one["sequence"])
    assert json.loads(WHOLE.splitlines()[heard[0]["sequence"] - 1]) == json.loads(heard[0]["text"])
    assert [json.loads(line) for line in result.content.splitlines()] == [
        json.loads(line) for line in WHOLE.splitlines()
    ]
    assert told[-1][1]["result"]["size"] == len(result.content)
