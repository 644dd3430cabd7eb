"""Webhooks from verdict to receiver: data/json/webhook_receivers.json (families f4 to f7) and the operator's side."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import json
import re
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from gateway_stack import DATA, MakeStack, Stack, open_stack
from receiver import Receiver, answers, closes, hangs, receiving, trickles
from standardwebhooks import Webhook

from gateway.webhooks import courier, deliver, schedule, sign
from gateway.webhooks.deliver import Answer
from queuecore.errors import BrokerUnavailable, ConfigurationError
from queuecore.notice import NoticeStatus
from queuecore.testing.clock import ManualClock, eventually
from queuecore.testing.memory import MemoryQueue
from queuecore.testing.notices import MemoryNotices
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio

RECEIVERS = {one["id"]: one for one in json.loads((DATA / "json" / "webhook_receivers.json").read_text("utf-8"))}
SECRET = "whsec_" + base64.b64encode(b"a" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"b" * 24).decode()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "LOOK_SECONDS", 0.02)


@pytest.fixture
async def stack(make_stack: MakeStack, tmp_path: Path) -> Stack:
    path = tmp_path / "secrets"
    _ = path.write_text(f"# two, while one is changed for the other\n{SECRET}\n{OTHER}\n")
    queue = MemoryQueue(ManualClock(time.time_ns() // 1_000_000))
    return await make_stack(queue=queue, webhook_allow="127.0.0.1", webhook_secrets_file=str(path))


async def finished(stack: Stack, url: str, result: bytes = b'{"text": "1.0"}') -> str:
    response = await stack.client.post("/jobs/echo?model=large", params={"callback_url": url}, content=b"x")
    assert response.status_code == 202, response.text
    await stack.complete(await stack.claim("large"), result)
    return f"{response.json()['job_id']}:1"


async def shown(stack: Stack, event_id: str) -> dict[str, Any]:
    return (await stack.admin.get(f"/webhooks/{event_id}")).json()


async def reaches(stack: Stack, event_id: str, status: str) -> dict[str, Any]:
    async def there() -> bool:
        return (await shown(stack, event_id)).get("status") == status

    assert await eventually(there)
    return await shown(stack, event_id)


async def attempts(stack: Stack, receiver: Receiver, count: int) -> None:
    """Let time pass until the receiver has seen so many."""
    for wanted in range(1, count + 1):
        assert await eventually(lambda wanted=wanted: len(receiver.seen) >= wanted)
        await asyncio.sleep(0)
        if wanted < count:
            (event_id,) = {one.headers["webhook-id"] for one in receiver.seen}

            async def settled(wanted: int = wanted, event_id: str = event_id) -> bool:
                return len((await shown(stack, event_id)).get("log", ())) == wanted

            assert await eventually(settled)
            stack.queue.clock.advance(4_000_000)


def test_every_receiver_of_the_corpus_has_a_test() -> None:
    assert set(RECEIVERS) == set(re.findall(r"^# (w\d\d)$", Path(__file__).read_text("utf-8"), re.MULTILINE))


# w01
# w14
@requirement("webhook:verdict:signed-as-standard-webhooks")
async def test_verdict_is_told_once_with_headers_that_the_reference_verifies(stack: Stack) -> None:
    async with receiving(answers(200)) as receiver:
        event_id = await finished(stack, receiver.url)
        detail = await reaches(stack, event_id, "delivered")
        stack.queue.clock.advance(10_000_000)
        await asyncio.sleep(0.1)

    (seen,) = receiver.seen
    assert seen.path == "/hook?a=b"
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["webhook-id"] == event_id
    for secret in (SECRET, OTHER):
        body = Webhook(secret).verify(seen.body, seen.headers)
        assert body["type"] == "job.completed"
        assert body["data"]["job_id"] == event_id.removesuffix(":1")
        assert body["data"]["status"] == "completed"
        assert body["timestamp"] == body["data"]["finished_at"]
    assert [one["outcome"] for one in detail["log"]] == ["delivered"]
    assert detail["body"] == body


@requirement("notice:erase:told-as-it-was")
async def test_client_that_deletes_its_job_at_once_is_told_all_the_same() -> None:
    queue = MemoryQueue(ManualClock())
    async with receiving(answers(200)) as receiver:
        async with open_stack(queue=queue, webhook_allow="127.0.0.1") as stack:
            await stack.gateway.tasks.stop()  # as a gateway that died
            event_id = await finished(stack, receiver.url)
            gone = await stack.client.delete(f"/jobs/echo/{event_id.removesuffix(':1')}/result")
            assert gone.status_code == 204
        async with open_stack(queue=queue, webhook_allow="127.0.0.1") as another:
            _ = await reaches(another, event_id, "delivered")

    (seen,) = receiver.seen
    assert json.loads(seen.body)["data"]["status"] == "completed"


# w02
@requirement("webhook:retry:same-bytes-fresh-signature")
async def test_failures_are_retried_with_the_same_id_and_bytes_and_a_fresh_signature(stack: Stack) -> None:
    async with receiving(answers(500, 503, 404, 200)) as receiver:
        event_id = await finished(stack, receiver.url)
        await attempts(stack, receiver, 4)
        detail = await reaches(stack, event_id, "delivered")

    assert {one.headers["webhook-id"] for one in receiver.seen} == {event_id}
    assert len({one.body for one in receiver.seen}) == 1
    assert len({one.headers["webhook-timestamp"] for one in receiver.seen}) == 4
    assert len({one.headers["webhook-signature"] for one in receiver.seen}) == 4
    assert [(one["outcome"], one["http_status"]) for one in detail["log"]] == [
        ("retried", 500), ("retried", 503), ("retried", 404), ("delivered", 200),
    ]  # fmt: skip


def test_delays_grow_with_jitter_honour_retry_after_and_end_after_a_day() -> None:
    failed = Answer(500)
    delays = [[schedule.after(failed, attempt, 0).in_ms for _ in range(20)] for attempt in range(1, 9)]
    assert all(max(one) < min(later) for one, later in itertools.pairwise(delays))
    assert all(len(set(one)) > 1 for one in delays)
    assert 800 <= min(delays[0]) <= max(delays[0]) <= 1_200
    assert schedule.after(failed, 60, 0).in_ms <= 3_600_000 * 1.2
    assert schedule.after(Answer(429, retry_after_seconds=500), 1, 0).in_ms == 500_000
    assert schedule.after(Answer(429, retry_after_seconds=90_000), 1, 0).status is NoticeStatus.PARKED
    assert schedule.after(failed, 30, 86_000_000).status is NoticeStatus.PARKED
    assert schedule.after(Answer(None, "no answer"), 1, 0).status is NoticeStatus.PENDING


# w04
# w05
@requirement("webhook:any:slow-receiver-delays-nobody")
@pytest.mark.parametrize("behave", [hangs, trickles])
async def test_receiver_that_never_ends_is_given_up_and_delays_nobody(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, behave: Any
) -> None:
    monkeypatch.setattr(deliver, "DEADLINE_SECONDS", 3.0)
    async with AsyncExitStack() as open_:
        slow = await open_.enter_async_context(receiving(behave))
        others = [await open_.enter_async_context(receiving(answers(200))) for _ in range(20)]
        slow_ids = [await finished(stack, slow.url) for _ in range(50)]
        for receiver in others:
            _ = await finished(stack, receiver.url)
        assert await eventually(lambda: all(len(one.seen) == 1 for one in others), within=2)
        assert slow.dialled <= 2 * courier.PER_TARGET

        async def given_up() -> bool:
            log = (await shown(stack, slow_ids[0]))["log"]
            return bool(log) and "no answer within" in log[0]["error"]

        assert await eventually(given_up, within=10)


# w07
async def test_answer_is_capped_and_never_inflated(stack: Stack) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    async with receiving(answers(200, 500, head="content-encoding: gzip\r\n", body=bomb)) as receiver:
        assert await reaches(stack, await finished(stack, receiver.url), "delivered")
        failed = await finished(stack, receiver.url)

        async def tried() -> bool:
            return bool((await shown(stack, failed)).get("log"))

        assert await eventually(tried)
    assert len((await shown(stack, failed))["log"][0]["answer"]) <= deliver.ANSWER_BYTES
    assert {one.headers["accept-encoding"] for one in receiver.seen} == {"identity"}


# w08
async def test_410_ends_it(stack: Stack) -> None:
    async with receiving(answers(410)) as receiver:
        detail = await reaches(stack, await finished(stack, receiver.url), "stopped")
        stack.queue.clock.advance(90_000_000)
        await asyncio.sleep(0.1)

    assert (len(receiver.seen), detail["next_at"]) == (1, None)


# w10
async def test_connection_closed_without_an_answer_is_retried(stack: Stack) -> None:
    async with receiving(closes) as receiver:
        _ = await finished(stack, receiver.url)
        await attempts(stack, receiver, 3)

    assert len({one.headers["webhook-id"] for one in receiver.seen}) == 1


# w11
@requirement("webhook:verdict:one-sender")
async def test_three_gateways_send_each_event_once() -> None:
    queue = MemoryQueue(ManualClock())
    async with AsyncExitStack() as open_:
        receiver = await open_.enter_async_context(receiving(answers(200)))
        stacks = [await open_.enter_async_context(open_stack(queue=queue, webhook_allow="127.0.0.1")) for _ in range(3)]
        ids = [await finished(stacks[0], receiver.url) for _ in range(60)]
        assert await eventually(lambda: len(receiver.seen) >= 60)
        await asyncio.sleep(0.1)

    assert sorted(one.headers["webhook-id"] for one in receiver.seen) == sorted(ids)
    assert "webhook-signature" not in receiver.seen[0].headers  # no secrets, no signature


# w13
@requirement("webhook:retry:plan-outlives-the-gateway")
async def test_plan_goes_on_with_another_gateway() -> None:
    queue = MemoryQueue(ManualClock())
    async with receiving(answers(500, 200)) as receiver:
        async with open_stack(queue=queue, webhook_allow="127.0.0.1") as first:
            event_id = await finished(first, receiver.url)

            async def failed() -> bool:
                return bool((await shown(first, event_id)).get("log"))

            assert await eventually(failed)
        queue.clock.advance(2_000)
        async with open_stack(queue=queue, webhook_allow="127.0.0.1") as second:
            detail = await reaches(second, event_id, "delivered")

    assert [one["outcome"] for one in detail["log"]] == ["retried", "delivered"]


async def test_attempt_whose_gateway_died_comes_up_again(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    settle, lost = MemoryNotices.settle, [True, True, True, True]

    async def away(self: MemoryNotices, *args: Any, **kwargs: Any) -> bool:
        if lost:
            _ = lost.pop()
            raise BrokerUnavailable("away")
        return await settle(self, *args, **kwargs)

    monkeypatch.setattr(MemoryNotices, "settle", away)
    monkeypatch.setattr(courier, "SETTLE_PAUSES_SECONDS", (0, 0, 0))
    async with receiving(answers(200)) as receiver:
        event_id = await finished(stack, receiver.url)
        assert await eventually(lambda: not lost)
        stack.queue.clock.advance(courier.LEASE_MS)
        _ = await reaches(stack, event_id, "delivered")

    assert [one.headers["webhook-id"] for one in receiver.seen] == [event_id, event_id]


@requirement("webhook:retry:parked-and-redelivered")
async def test_given_up_after_a_day_parked_listed_and_delivered_again_by_hand(stack: Stack) -> None:
    async with receiving(answers(500, 500, 200)) as receiver:
        event_id = await finished(stack, receiver.url)
        await attempts(stack, receiver, 1)

        async def failed() -> bool:
            return bool((await shown(stack, event_id)).get("log", ()))

        assert await eventually(failed)
        stack.queue.clock.advance(86_400_000)
        detail = await reaches(stack, event_id, "parked")
        assert detail["last_error"] == "HTTP 500"
        listed = (await stack.admin.get("/webhooks", params={"status": "parked"})).json()
        assert ([one["event_id"] for one in listed["webhooks"]], listed["parked"]) == ([event_id], 1)

        response = await stack.admin.post("/webhooks/redeliver", json={"all": True})
        assert (response.status_code, response.json()["planned"]) == (202, [event_id])
        _ = await reaches(stack, event_id, "delivered")
        assert (await stack.admin.post(f"/webhooks/{event_id}/redeliver")).status_code == 202
        assert await eventually(lambda: len(receiver.seen) == 4)
    assert len({one.body for one in receiver.seen}) == 1


async def test_operators_requests_that_make_no_sense_are_refused(stack: Stack) -> None:
    for method, path, body, status in (
        ("GET", "/webhooks/x:1", None, 404), ("POST", "/webhooks/x:1/redeliver", None, 404),
        ("GET", "/webhooks?status=lost", None, 400), ("GET", "/webhooks?cursor=x", None, 400),
        ("GET", "/webhooks?limit=0", None, 400), ("POST", "/webhooks/redeliver", {}, 400),
        ("POST", "/webhooks/redeliver", {"ids": [], "all": True}, 400), ("POST", "/webhooks/redeliver", [], 400),
    ):  # fmt: skip
        assert (await stack.admin.request(method, path, json=body)).status_code == status, path
    answer = (await stack.admin.post("/webhooks/redeliver", json={"ids": ["x:1"]})).json()
    assert answer == {"planned": [], "unknown": ["x:1"]}


async def test_address_that_is_not_allowed_any_more_is_parked_and_never_dialled(make_stack: MakeStack) -> None:
    queue = MemoryQueue(ManualClock())
    async with receiving(answers(200)) as receiver:
        open_once = await make_stack(queue=queue, webhook_allow="127.0.0.1")
        response = await open_once.client.post(
            "/jobs/echo?model=large", params={"callback_url": receiver.url}, content=b"x"
        )
        await open_once.gateway.tasks.stop()
        closed = await make_stack(queue=queue)
        _ = await closed.brokers["large"].cancel(response.json()["job_id"])
        detail = await reaches(closed, f"{response.json()['job_id']}:1", "parked")

    assert receiver.dialled == 0
    assert detail["log"][0]["outcome"] == "blocked"
    assert detail["body"]["type"] == "job.cancelled"


# -- secrets ----------------------------------------------------------------------------------------------------


def test_secrets_are_read_anew_when_their_file_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "secrets"
    _ = path.write_text(SECRET)
    secrets = sign.Secrets(str(path))
    assert secrets.current() == [b"a" * 32]
    _ = path.write_text(f"{SECRET}\n{OTHER}\n")
    assert secrets.current() == [b"a" * 32, b"b" * 24]
    _ = path.write_text("nonsense")
    assert secrets.current() == [b"a" * 32, b"b" * 24]
    assert "were not read anew" in caplog.text
    assert SECRET not in caplog.text
    assert sign.Secrets("").current() == ()


@pytest.mark.parametrize(
    "text", ["", "# only words", "whsec_", "whsec_***", "whsec_" + base64.b64encode(b"short").decode()]
)
def test_file_without_usable_secrets_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secrets"
    _ = path.write_text(text)
    with pytest.raises(ConfigurationError, match="GATEWAY_WEBHOOK_SECRETS_FILE"):
        _ = sign.Secrets(str(path))
    with pytest.raises(ConfigurationError, match="GATEWAY_WEBHOOK_SECRETS_FILE"):
        _ = sign.Secrets(str(tmp_path / "nowhere"))
