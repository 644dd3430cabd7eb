"""When the client tries again, when it must not, and how a broken download goes on."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from relayq import Client, Download, NotReachable, OutcomeUnknown, SourceChanged, Unavailable, UnexpectedAnswer
from relayq.exchange import Exchange, Patience, Pause, Reply, exchanged, retry_after_seconds
from relayq.upload import json_body

JOB = "01890a5d-ac96-774b-bcce-b302099a8057"
PROBLEM = {"content-type": "application/problem+json"}


def drive(method: str, *outcomes: Reply | Exception, patience: float = 30, key: str = "") -> tuple[list[float], object]:
    """(pauses, answer or exception) of one exchange that meets ``outcomes``; no time passes."""
    body = json_body(b"{}") if method == "POST" else None
    flow = exchanged(Exchange(method, "/x", body=body, key=key, repeatable=bool(key)), Patience(patience))
    left = list(outcomes)
    pauses: list[float] = []
    outcome: Reply | Exception | None = None
    try:
        while True:
            step = flow.throw(outcome) if isinstance(outcome, Exception) else flow.send(outcome)
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                outcome = None
            else:
                outcome = left.pop(0)
    except StopIteration as end:
        return pauses, end.value
    except (NotReachable, OutcomeUnknown) as error:
        return pauses, error


OK = Reply(200, {}, b"{}")
BUSY = Reply(503, {"retry-after": "3"}, b"")
AWAY = NotReachable("http://x", "refused")
BROKEN = OutcomeUnknown("reset")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_safe_calls_are_repeated_and_not_before_retry_after(method: str) -> None:
    pauses, answer = drive(method, AWAY, BROKEN, BUSY, Reply(429, {"retry-after": "2"}, b""), OK)
    assert answer is OK
    assert len(pauses) == 4
    assert pauses[2] >= 3
    assert pauses[3] >= 2


def test_a_submission_with_a_key_is_repeated_like_a_safe_call() -> None:
    in_flight = Reply(409, {"retry-after": "1"}, b'{"code":"idempotency_in_flight"}')
    pauses, answer = drive("POST", BROKEN, BUSY, in_flight, AWAY, OK, key="k")
    assert answer is OK
    assert pauses[1] >= 3
    assert pauses[2] >= 1
    other = Reply(409, {}, b'{"code":"wrong_state"}')
    assert drive("POST", other, key="k") == ([], other)


def test_no_later_refusal_hides_that_a_submission_may_have_been_accepted() -> None:
    broken = OutcomeUnknown("reset")
    assert drive("POST", broken, Reply(503, {"retry-after": "60"}, b""), key="k")[1] is broken
    assert broken.idempotency_key == "k"
    assert drive("POST", OutcomeUnknown("reset"), patience=0, key="k")[0] == []


def test_a_submission_without_a_key_is_repeated_only_when_nothing_was_sent() -> None:
    assert drive("POST", AWAY, OK)[1] is OK
    assert drive("POST", BROKEN)[1] is BROKEN
    assert drive("POST", BUSY) == ([], BUSY)


def test_patience_ends() -> None:
    assert drive("GET", AWAY, patience=0) == ([], AWAY)
    assert drive("GET", Reply(503, {"retry-after": "60"}, b""), patience=30)[0] == [], "the wait would be too long"


def test_retry_after_is_a_number_or_a_date() -> None:
    assert retry_after_seconds({}) is None
    assert retry_after_seconds({"retry-after": "soon"}) is None
    assert retry_after_seconds({"retry-after": "12"}) == 12
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert 85 < (retry_after_seconds({"retry-after": date}) or 0) <= 90
    assert retry_after_seconds({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0


def test_no_server_is_not_reachable_and_says_where() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    relayq = Client("http://server:1", patience_seconds=0, transport=httpx.MockTransport(refuse))
    with pytest.raises(NotReachable, match="http://server:1"):
        _ = relayq.submit(b"x", service_type="echo")


def test_a_submission_goes_out_again_whole_under_the_same_key(tmp_path: Path) -> None:
    bodies: list[bytes] = []
    keys: list[str] = []

    def third(request: httpx.Request) -> httpx.Response:
        bodies.append(request.read())
        keys.append(request.headers["idempotency-key"])
        if len(bodies) % 3:
            raise httpx.ReadError("reset")
        return httpx.Response(202, json={"job_id": JOB, "service_type": "echo", "status": "pending"})

    relayq = Client("http://server", transport=httpx.MockTransport(third))
    path = tmp_path / "file"
    _ = path.write_bytes(b"whole")
    opened = io.BytesIO(b"-skipped-whole")
    _ = opened.seek(len(b"-skipped-"))
    for source in (path, b"whole", opened):
        assert relayq.submit(source, service_type="echo").job_id == JOB
    assert all(b"\r\n\r\nwhole\r\n" in body for body in bodies)
    assert [len(set(keys[start : start + 3])) for start in (0, 3, 6)] == [1, 1, 1]
    assert len(set(keys)) == 3


@pytest.mark.parametrize("how", ["no key", "bytes that are gone"])
def test_a_submission_that_cannot_be_repeated_is_unknown_at_once(how: str) -> None:
    calls = 0

    def cut(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        raise httpx.ReadError("reset")

    relayq = Client("http://server", transport=httpx.MockTransport(cut))
    source, key = (b"x", "") if how == "no key" else (iter([b"x"]), "mine")
    with pytest.raises(OutcomeUnknown) as caught:
        _ = relayq.submit(source, service_type="echo", idempotency_key=key)
    assert calls == 1
    assert caught.value.idempotency_key == key


def test_a_url_without_scheme_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="localhost:8080"):
        _ = Client("localhost:8080")


class Broken(httpx.SyncByteStream):
    """Some bytes, then the connection is gone."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __iter__(self) -> Iterator[bytes]:
        yield self.data
        raise httpx.ReadError("reset")


DATA = bytes(range(256)) * 40
FACTS = {"size": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}


def server(*answers: Callable[[httpx.Request], httpx.Response]) -> tuple[Client, list[httpx.Request]]:
    asked: list[httpx.Request] = []
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/result"):
            document: dict[str, Any] = {"job_id": JOB, "service_type": "echo", "status": "completed", "result": FACTS}
            return httpx.Response(200, json=document)
        asked.append(request)
        return left.pop(0)(request)

    return Client("http://server", transport=httpx.MockTransport(answer)), asked


def whole(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=DATA, headers={"etag": '"r"'})


def rest(request: httpx.Request) -> httpx.Response:
    start = int(request.headers["range"].removeprefix("bytes=").removesuffix("-"))
    content_range = f"bytes {start}-{len(DATA) - 1}/{len(DATA)}"
    return httpx.Response(206, content=DATA[start:], headers={"etag": '"r"', "content-range": content_range})


def broken_after(count: int) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        head = {"etag": '"r"'}
        start = 0
        if "range" in request.headers:
            start = int(request.headers["range"].removeprefix("bytes=").removesuffix("-"))
            head["content-range"] = f"bytes {start}-{len(DATA) - 1}/{len(DATA)}"
        return httpx.Response(206 if start else 200, stream=Broken(DATA[start : start + count]), headers=head)

    return answer


def test_a_broken_download_goes_on_where_it_stopped() -> None:
    relayq, asked = server(broken_after(1000), broken_after(500), rest)
    output = io.BytesIO()
    facts = relayq.result(JOB, output, service_type="echo")
    assert output.getvalue() == DATA
    assert facts.sha256 == FACTS["sha256"]
    assert [request.headers.get("range") for request in asked] == [None, "bytes=1000-", "bytes=1500-"]
    assert asked[1].headers["if-range"] == '"r"'
    assert asked[0].headers["accept-encoding"] == "identity"


def test_a_server_that_sends_the_whole_again_starts_the_file_anew() -> None:
    relayq, _ = server(broken_after(1000), whole)
    output = io.BytesIO()
    output.write(b"mine")
    _ = relayq.result(JOB, output, service_type="echo")
    assert output.getvalue() == b"mine" + DATA


def test_bytes_that_are_not_the_announced_ones_are_refused() -> None:
    relayq, _ = server(lambda _: httpx.Response(200, content=DATA[:-1] + b"!"))
    with pytest.raises(UnexpectedAnswer, match="SHA-256"):
        _ = relayq.result(JOB, io.BytesIO(), service_type="echo")
    relayq, _ = server(lambda _: httpx.Response(200, content=DATA[:-1]))
    with pytest.raises(UnexpectedAnswer, match=f"{len(DATA)} were announced"):
        _ = relayq.result(JOB, io.BytesIO(), service_type="echo")


def test_what_an_earlier_run_left_is_continued_or_thrown_away() -> None:
    for left, answers in ((DATA[:2000], [rest]), (b"x" * 2000, [rest, whole]), (b"x" * 2 * len(DATA), [whole])):
        relayq, _ = server(*answers)
        output = io.BytesIO()
        download = Download(output)
        download.adopt(left)
        _ = output.write(left)
        _ = relayq.result(JOB, download, service_type="echo")
        assert output.getvalue() == DATA

    relayq, asked = server()
    download = Download(io.BytesIO())
    download.adopt(DATA)
    _ = relayq.result(JOB, download, service_type="echo")
    assert asked == [], "it was there already"


def test_a_pipe_cannot_be_rewound_and_says_so() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    relayq, _ = server(broken_after(1000), whole)
    with pytest.raises(UnexpectedAnswer, match="rewound"):
        _ = relayq.result(JOB, Pipe(), service_type="echo")


def test_a_file_that_shrinks_while_it_is_sent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def shrink(request: httpx.Request) -> httpx.Response:
        raise httpx.LocalProtocolError("Too little data for declared Content-Length")

    relayq = Client("http://server", transport=httpx.MockTransport(shrink))
    with pytest.raises(SourceChanged):
        _ = relayq.submit(b"x", service_type="echo")


def test_the_last_refusal_is_the_answer_when_patience_ends() -> None:
    def busy(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, json={"code": "queue_unavailable", "detail": "Redis is away"}, headers=PROBLEM)

    relayq = Client("http://server", patience_seconds=0, transport=httpx.MockTransport(busy))
    with pytest.raises(Unavailable, match="Redis is away"):
        _ = relayq.status(JOB, service_type="echo")
