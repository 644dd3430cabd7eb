"""A job's events: read in any pieces, resumed after a break, ended by the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from relayq import AsyncClient, Client, Event, Gone, Throttled, UnexpectedAnswer

JOB = "01890a5d-ac96-774b-bcce-b302099a8057"
HEAD = {"content-type": "text/event-stream"}
Answer = Callable[[httpx.Request], httpx.Response]


def event(name: str, at: str, **data: object) -> bytes:
    return f"event: {name}\nid: {at}\ndata: {json.dumps(data)}\n\n".encode()


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in pieces of ``size`` bytes, and then, if it ``breaks``, the connection is gone."""

    def __init__(self, data: bytes, size: int = 1, *, breaks: bool = False) -> None:
        self._data, self._size, self._breaks = data, size, breaks

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._data), self._size):
            yield self._data[start : start + self._size]
        if self._breaks:
            raise httpx.ReadError("reset")

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        for piece in self:
            yield piece


def server(*answers: httpx.Response) -> tuple[Answer, list[httpx.Request]]:
    asked: list[httpx.Request] = []
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return left.pop(0)

    return answer, asked


def follow(*answers: httpx.Response, patience: float = 30) -> tuple[list[Event], list[httpx.Request]]:
    answer, asked = server(*answers)
    with Client("http://server", patience_seconds=patience, transport=httpx.MockTransport(answer)) as client:
        return list(client.events(JOB, service_type="echo")), asked


BROKEN_OFF = b"retry: 1\n\n: hello\n\n" + event("status", "v1", status="pending") + b"event: status\nid: v2\ndata: {"
REST = event("status", "v2", status="processing") + event("done", "v3-done", status="completed")


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize("breaks", [True, False])
def test_a_stream_that_ends_early_goes_on_after_the_last_whole_event(size: int, breaks: bool) -> None:
    first = httpx.Response(200, headers=HEAD, stream=Pieces(BROKEN_OFF, size, breaks=breaks))
    found, asked = follow(first, httpx.Response(200, headers=HEAD, stream=Pieces(REST, size)))
    assert [(one.name, one.id, one.data["status"]) for one in found] == [
        ("status", "v1", "pending"), ("status", "v2", "processing"), ("done", "v3-done", "completed"),
    ]  # fmt: skip
    assert "last-event-id" not in asked[0].headers
    assert asked[1].headers["last-event-id"] == "v1"


@pytest.mark.anyio
async def test_the_asynchronous_client_reads_the_same() -> None:
    answer, asked = server(
        httpx.Response(200, headers=HEAD, stream=Pieces(BROKEN_OFF, breaks=True)),
        httpx.Response(503, headers={"retry-after": "0"}, content=b""),
        httpx.Response(200, headers=HEAD, stream=Pieces(REST)),
    )
    async with AsyncClient("http://server", transport=httpx.MockTransport(answer)) as client:
        found = [one.name async for one in client.events(JOB, service_type="echo")]
    assert found == ["status", "status", "done"]
    assert len(asked) == 3


def test_nothing_more_to_tell_is_the_end() -> None:
    assert follow(httpx.Response(204))[0] == []


def test_refusals_are_raised_with_their_class() -> None:
    problem = {"content-type": "application/problem+json"}
    with pytest.raises(Gone):
        _ = follow(httpx.Response(410, headers=problem, json={"code": "job_expired", "detail": "over"}))
    with pytest.raises(Throttled):
        _ = follow(httpx.Response(429, headers=problem | {"retry-after": "60"}, json={"code": "x"}), patience=1)


def test_what_is_no_event_stream_is_said() -> None:
    with pytest.raises(UnexpectedAnswer, match="no event stream"):
        _ = follow(httpx.Response(200, headers={"content-type": "text/html"}, content=b"<html>"))
    with pytest.raises(UnexpectedAnswer, match="without JSON"):
        _ = follow(httpx.Response(200, headers=HEAD, content=b"data: nonsense\n\n"))
