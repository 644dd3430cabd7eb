"""Idempotency-Key: the sequences of data/json/idempotency_sequences.json (families i and j) and what they rest on."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_process import gateway, queue_of
from gateway_stack import DATA, MakeStack, Stack
from test_http_socket import connect, raw

from gateway import idempotency
from queuecore.broker import Retention
from queuecore.errors import BlobUnavailable, BrokerUnavailable, OutcomeUnknown
from queuecore.reservation import LIFE_MS
from queuecore.testing.blobs import MemoryStore
from queuecore.testing.clock import eventually
from queuecore.testing.memory import MemoryBroker, MemoryReservations
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess

pytestmark = pytest.mark.anyio

URL = "/jobs/echo?model=large"
SEQUENCES = {one["id"]: one for one in json.loads((DATA / "json" / "idempotency_sequences.json").read_text("utf-8"))}


async def post(stack: Stack, key: str = "k", content: Any = b"A", url: str = URL, **headers: str) -> httpx.Response:
    return await stack.client.post(url, content=content, headers={"idempotency-key": key, **headers})


def refusal(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def held_back(gate: asyncio.Event, *pieces: bytes) -> AsyncIterator[bytes]:
    async def body() -> AsyncIterator[bytes]:
        yield pieces[0]
        _ = await gate.wait()
        for piece in pieces[1:]:
            yield piece

    return body()


def test_every_sequence_of_the_corpus_has_a_test() -> None:
    text = Path(__file__).read_text("utf-8")

    assert set(SEQUENCES) == set(re.findall(r"^# (i\d\d)$", text, re.MULTILINE))


# i01
@requirement("idempotency:submit:one-job-a-key")
async def test_fifty_posts_at_once_make_one_job_and_leave_no_object(stack: Stack) -> None:
    for number in range(20):
        answers = await asyncio.gather(*(post(stack, f"k{number}") for _ in range(50)))

        assert len({one.json()["job_id"] for one in answers if one.status_code < 300}) == 1
        assert [one.status_code for one in answers].count(202) == 1
        for one in answers:
            if one.status_code == 409:
                assert one.json()["code"] == "idempotency_in_flight"
                assert int(one.headers["retry-after"]) >= 1
            elif one.status_code == 200:
                assert one.headers["idempotent-replay"] == "true"
            else:
                assert one.status_code == 202
        assert len(stack.job_ids) == len(stack.objects) == number + 1
    assert (await stack.brokers["large"].counts()).pending == 20


# i02
@requirement("idempotency:submit:another-request-refused")
async def test_other_body_while_the_first_comes_is_409_and_afterwards_422(stack: Stack) -> None:
    gate = asyncio.Event()
    first = asyncio.create_task(post(stack, content=held_back(gate, b"A", b"A")))
    assert await eventually(lambda: stack.queue.reservations.held)

    assert refusal(await post(stack, content=b"B")) == (409, "idempotency_in_flight")
    gate.set()
    assert (await first).status_code == 202

    assert refusal(await post(stack, content=b"B")) == (422, "idempotency_key_reused")
    assert len(stack.job_ids) == len(stack.objects) == 1


# i04
@pytest.mark.parametrize(
    "other",
    ["?model=small", "?model=large&operation=echo&deadline=2040-01-01T00:00:00Z", "?model=large&language=en",
     "?model=large&ordering_key=o", "?model=large&callback_url=https://hooks.example.com/x"],
)  # fmt: skip
async def test_same_bytes_with_another_option_are_another_request(stack: Stack, other: str) -> None:
    assert (await post(stack)).status_code == 202

    assert refusal(await post(stack, url=f"/jobs/echo{other}")) == (422, "idempotency_key_reused")


# i05
@requirement("idempotency:submit:scoped-to-tenant-and-route")
async def test_tenants_and_routes_never_share_a_key(make_stack: MakeStack, wav: bytes) -> None:
    stack = await make_stack(auth="header")
    first = await post(stack, **{"x-consumer": "a"})
    second = await post(stack, **{"x-consumer": "a:jobs%2Fecho"})
    third = await post(stack, url="/jobs/transcription", content=wav, **{"x-consumer": "a"})

    assert [answer.status_code for answer in (first, second, third)] == [202, 202, 202]
    assert len(set(stack.job_ids)) == 3
    assert first.json()["job_id"] not in second.text


# i08
@requirement("idempotency:submit:replayed")
async def test_repeat_after_a_lost_answer_names_the_same_job_as_it_is_now(stack: Stack) -> None:
    first = (await post(stack)).json()
    await stack.complete(await stack.claim("large"), b"1")

    again = await post(stack)

    assert (again.status_code, again.headers["idempotent-replay"]) == (200, "true")
    assert again.headers["location"] == first["links"]["self"]
    assert (again.json()["job_id"], again.json()["status"]) == (first["job_id"], "completed")


async def test_client_that_hangs_up_while_its_job_is_queued_finds_that_job(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued, submit = asyncio.Event(), MemoryBroker.submit

    async def slow(self: MemoryBroker, job: Any) -> Any:
        made = await submit(self, job)
        queued.set()
        await asyncio.sleep(0.05)
        return made

    monkeypatch.setattr(MemoryBroker, "submit", slow)
    wire = await connect(stack)
    await wire.send(
        b"POST /jobs/echo?model=large HTTP/1.1\r\nHost: g\r\nContent-Length: 1\r\nIdempotency-Key: k\r\n\r\nA"
    )
    _ = await queued.wait()
    wire.close()

    again = await post(stack)

    assert again.status_code == 200
    assert stack.job_ids == [again.json()["job_id"]]


# i10
@requirement("idempotency:submit:freed-on-failure")
async def test_failure_frees_the_key_at_once_and_is_never_replayed(make_stack: MakeStack) -> None:
    class Away(MemoryStore):
        away = True

        async def put(self, key: str, chunks: AsyncIterator[bytes]) -> int:
            if self.away:
                raise BlobUnavailable(key, "away")
            return await super().put(key, chunks)

    store = Away()
    stack = await make_stack(store)
    assert refusal(await post(stack)) == (503, "storage_unavailable")
    store.away = False

    assert (await post(stack)).status_code == 202


async def test_refused_and_abandoned_uploads_free_the_key(stack: Stack) -> None:
    assert (await post(stack, content=b"")).status_code == 400
    wire = await connect(stack)
    await wire.send(
        b"POST /jobs/echo?model=large HTTP/1.1\r\nHost: g\r\nContent-Length: 9\r\nIdempotency-Key: k\r\n\r\nA"
    )
    assert await eventually(lambda: stack.queue.reservations.held)
    wire.close()
    assert await eventually(lambda: not stack.queue.reservations.held)

    assert (await post(stack)).status_code == 202


async def test_queue_that_is_full_frees_the_key(stack: Stack) -> None:
    for number in range(3):
        assert (await post(stack, f"k{number}", url="/jobs/echo?model=small")).status_code == 202
    assert (await post(stack, url="/jobs/echo?model=small")).status_code == 429
    assert len(stack.objects) == 3
    _ = await stack.brokers["small"].purge()

    assert (await post(stack, url="/jobs/echo?model=small")).status_code == 202


# i11
@requirement("idempotency:any:lives-with-the-record")
async def test_key_ends_with_its_job(stack: Stack) -> None:
    first = (await post(stack)).json()["job_id"]
    stack.queue.clock.advance(86_400_000 * 3)
    assert (await post(stack)).json()["job_id"] == first  # a live job has no end
    _ = await stack.brokers["large"].cancel(first)
    stack.queue.clock.advance(Retention().result_ms + 1)
    assert (await stack.client.get(f"/jobs/echo/{first}")).status_code == 410

    again = await post(stack)

    assert again.status_code == 202
    assert (await stack.client.get(again.headers["location"])).status_code == 200


# i13
@pytest.mark.parametrize(
    "key", ["", " ", "k" * 4096, "k" * 256, "a b", "a,b", '"', '""', '" "', '"a', 'a"', "é", '"é"', "a\\b", '"a\\b"']
)
async def test_what_is_no_key_is_refused_and_never_reaches_redis(stack: Stack, key: str) -> None:
    response = await stack.client.post(URL, content=b"A", headers={"idempotency-key": key.encode()})  # pyright: ignore[reportArgumentType]

    assert refusal(response) == (400, "invalid_idempotency_key")
    assert not stack.queue.reservations.held
    assert stack.objects == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [("a", '"a"'), ("8e03978e-40d5", '"8e03978e-40d5"'), ('"a b"', '"a b"'), ("[a]*?", '"[a]*?"'), ("k" * 255, f'"{"k" * 255}"'),
     ('"a\\"b\\\\"', '"a\\"b\\\\"'), ("  a ", "a"), ("a:b%/{}", '"a:b%/{}"')],
)  # fmt: skip
async def test_quoted_and_bare_are_one_key(stack: Stack, one: str, other: str) -> None:
    first = await post(stack, one)

    assert first.status_code == 202
    assert (await post(stack, other)).json()["job_id"] == first.json()["job_id"]
    assert (await post(stack, "another")).status_code == 202


async def test_two_keys_are_refused(stack: Stack) -> None:
    response = await stack.client.post(URL, content=b"A", headers=[("idempotency-key", "a"), ("idempotency-key", "a")])

    assert refusal(response) == (400, "invalid_idempotency_key")


@pytest.mark.parametrize(("name", "status"), [("h11_idempotency_key_quoted", 202), ("h12_idempotency_key_bad", 400)])
async def test_raw_requests_of_the_corpus(stack: Stack, name: str, status: int) -> None:
    wire = await connect(stack)
    await wire.send(raw(name))

    answered, _, body = await wire.answer()

    assert answered == status, body
    if status == 202:
        bare = await stack.client.post(
            "/jobs/transcription",
            files={"file": ("a.wav", next(iter(stack.objects.values())), "audio/wav")},
            data={"model": "whisper-large-v3"},
            headers={"idempotency-key": "8e03978e-40d5-43dd-bc93-6894a57f9324"},
        )
        assert (bare.status_code, bare.json()["job_id"]) == (200, json.loads(body)["job_id"])
    else:
        assert stack.objects == {}
        assert not stack.queue.reservations.held


# -- what makes two requests the same ---------------------------------------------------------------------------


async def test_boundary_and_order_of_fields_make_no_difference(stack: Stack) -> None:
    def form(boundary: str, *fields: tuple[str, str]) -> tuple[bytes, str]:
        parts = [
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in fields
        ]
        file = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nA\r\n--{boundary}--\r\n'
        )
        return ("".join(parts) + file).encode(), f"multipart/form-data; boundary={boundary}"

    one, type_one = form("one", ("model", "large"), ("a", "1"), ("b", "2"))
    two, type_two = form("two-two", ("b", "2"), ("a", "1"), ("model", "large"))
    first = await post(stack, content=one, url="/jobs/echo", **{"content-type": type_one})
    again = await post(stack, content=two, url="/jobs/echo", **{"content-type": type_two})
    assert (first.status_code, again.status_code) == (202, 200)

    repeated, kind = form("x", ("t[]", "word"), ("t[]", "segment"), ("model", "large"))
    turned, _ = form("x", ("t[]", "segment"), ("t[]", "word"), ("model", "large"))
    assert (await post(stack, "r", repeated, "/jobs/echo", **{"content-type": kind})).status_code == 202
    assert (await post(stack, "r", turned, "/jobs/echo", **{"content-type": kind})).status_code == 422


# -- Redis that does not answer, and processes that end ---------------------------------------------------------


async def test_lost_replies_of_the_reservation_change_nothing(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, lost = MemoryReservations.reserve, [True]

    async def once(self: MemoryReservations, *args: Any, **kwargs: Any) -> Any:
        reply = await reserve(self, *args, **kwargs)
        if lost.pop() if lost else False:
            raise OutcomeUnknown("lost")
        return reply

    monkeypatch.setattr(MemoryReservations, "reserve", once)

    assert (await post(stack)).status_code == 202
    assert len(stack.job_ids) == 1


async def test_upload_longer_than_the_reservation_keeps_its_key(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(idempotency, "RENEW_SECONDS", 0.01)
    reserve, fail = MemoryReservations.reserve, [True]

    async def flaky(self: MemoryReservations, *args: Any, **kwargs: Any) -> Any:
        if self.held and fail:
            _ = fail.pop()
            raise BrokerUnavailable("away")
        return await reserve(self, *args, **kwargs)

    monkeypatch.setattr(MemoryReservations, "reserve", flaky)
    gate = asyncio.Event()
    first = asyncio.create_task(post(stack, content=held_back(gate, b"A", b"A")))
    held = stack.queue.reservations.held
    assert await eventually(lambda: held)
    for _ in range(5):
        stack.queue.clock.advance(LIFE_MS - 1)
        assert await eventually(lambda: next(iter(held.values()))[1] > stack.queue.clock() + LIFE_MS - 2)
        assert (await post(stack)).status_code == 409
    gate.set()

    assert (await first).status_code == 202
    assert "was not renewed" in caplog.text


async def test_request_that_lost_its_key_to_another_makes_no_second_job(stack: Stack) -> None:
    gate = asyncio.Event()
    first = asyncio.create_task(post(stack, content=held_back(gate, b"A", b"A")))
    assert await eventually(lambda: stack.queue.reservations.held)
    stack.queue.reservations.held.clear()
    second = await post(stack, content=b"AA")
    gate.set()

    assert second.status_code == 202
    assert refusal(await first) == (409, "idempotency_in_flight")
    assert stack.job_ids == [second.json()["job_id"]]
    assert len(stack.objects) == 1


async def test_unknown_outcome_of_the_submission_keeps_the_reservation(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.handlers.submit.SUBMIT_PAUSES_SECONDS", ())
    submit = MemoryBroker.submit

    async def lost(self: MemoryBroker, job: Any) -> Any:
        _ = await submit(self, job)
        raise OutcomeUnknown("lost")

    monkeypatch.setattr(MemoryBroker, "submit", lost)
    assert refusal(await post(stack)) == (503, "outcome_unknown")

    again = await post(stack)
    assert again.status_code == 200
    assert stack.job_ids == [again.json()["job_id"]]


# i07
@pytest.mark.redis
@pytest.mark.parametrize("end", ["kill", "terminate"])
@requirement("idempotency:kill:freed-within-15-s")
async def test_gateway_that_ends_during_an_upload_frees_the_key_within_15_seconds(tmp_path: Path, end: str) -> None:
    with ValkeyProcess(appendonly="always") as valkey:
        async with gateway(tmp_path, valkey.url, GATEWAY_DRAIN_SECONDS="1") as process:
            await process.ready()
            _, writer = await asyncio.open_connection("127.0.0.1", int(process.public.rpartition(":")[2]))
            writer.write(b"POST /jobs/echo HTTP/1.1\r\nHost: g\r\nContent-Length: 9\r\nIdempotency-Key: k\r\n\r\nA")
            unfinished = tmp_path / "blobs" / ".unfinished"
            assert await eventually(lambda: unfinished.is_dir() and any(unfinished.iterdir()))
            getattr(process.child, end)()
            _ = await process.ended()
            writer.close()
        async with gateway(tmp_path, valkey.url) as process:
            await process.ready()
            asked = 0

            async def accepted() -> bool:
                nonlocal asked
                asked += 1
                answer = await process.client.post("/jobs/echo", content=b"A", headers={"idempotency-key": "k"})
                assert answer.status_code in {202, 409}
                return answer.status_code == 202

            assert await eventually(accepted, within=15, every=0.2)
            assert end == "kill" or asked == 1  # SIGTERM gave the key back at once
        async with queue_of(tmp_path, valkey) as broker:
            assert len((await broker.jobs()).jobs) == 1


@pytest.mark.redis
async def test_fifty_at_once_over_two_gateways_on_a_real_server(tmp_path: Path) -> None:
    with ValkeyProcess(appendonly="always") as valkey:
        async with gateway(tmp_path, valkey.url) as one, gateway(tmp_path, valkey.url) as two:
            await one.ready()
            await two.ready()
            for number in range(20):
                key = {"idempotency-key": f'"{number} of [a-z]*?"'}
                answers = await asyncio.gather(
                    *((one, two)[turn % 2].client.post("/jobs/echo", content=b"A", headers=key) for turn in range(50))
                )
                assert [answer.status_code for answer in answers].count(202) == 1
                assert {answer.status_code for answer in answers} <= {200, 202, 409}
                assert len({answer.json()["job_id"] for answer in answers if answer.status_code < 300}) == 1
        async with queue_of(tmp_path, valkey) as broker:
            assert len((await broker.jobs()).jobs) == (await broker.counts()).pending == 20
    objects = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert len(objects) == 20
