"""The operator's port: queues, claims, pause, purge, dead letters; and who is let in."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_stack import MakeStack, Stack

from queuecore.broker import OwnedClaim
from queuecore.names import new_job_id

pytestmark = pytest.mark.anyio

LLAMA = "meta-llama/Llama-3.1-8B"
TOKEN = "a-token-of-some-length"


async def submit(stack: Stack, count: int = 1) -> list[str]:
    ids: list[str] = []
    for _ in range(count):
        response = await stack.client.post("/jobs/chat", json={"input": 1})
        ids.append(response.json()["job_id"])
    return ids


async def bury(stack: Stack, count: int) -> list[str]:
    """Dead letters: jobs whose owners died once too often."""
    ids = await submit(stack, count)
    broker = stack.brokers[LLAMA]
    for _ in range(count * (broker.limits.max_reap_attempts + 1)):
        claim = await stack.claim(LLAMA)
        _ = await broker.renew(claim, "memory:9")
        _ = await broker.reap_dead(OwnedClaim(claim.job_id, claim.fence, claim.claim_id, "memory:9"), "exit 137")
    return ids


async def call(stack: Stack, method: str, path: str, body: Any = None) -> dict[str, Any]:
    response = await stack.admin.request(method, path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


# -- queues -----------------------------------------------------------------------------------------------------


async def test_queues_show_depths_age_rates_and_claims_with_lease_left(stack: Stack) -> None:
    _ = await submit(stack, 3)
    claim = await stack.claim(LLAMA)
    stack.queue.clock.advance(20_000)

    [summary] = [one for one in (await call(stack, "GET", "/queues"))["queues"] if one["model"] == LLAMA]
    one = await call(stack, "GET", f"/queues/{LLAMA}")

    assert summary["depths"] == {
        "pending": 2, "processing": 1, "delayed": 0, "paused": 0, "ordered": 0, "deadletter": 0, "outbox": 0,
    }  # fmt: skip
    assert summary["oldest_pending_seconds"] == 20
    assert summary["rates"]["submitted_per_second"] == 0.05
    assert {name: one[name] for name in summary} == summary
    [running] = one["claims"]
    assert (running["job_id"], running["owner"], running["lease_left_seconds"]) == (claim.job_id, "relay", 40)
    assert one["more_claims"] is False


async def test_paused_queue_gives_nothing_until_it_is_resumed(stack: Stack) -> None:
    [job_id] = await submit(stack)
    paused = await call(stack, "POST", f"/queues/{LLAMA}/pause")
    assert (paused["paused"], paused["depths"]["paused"], paused["depths"]["pending"]) == ("operator", 1, 0)
    assert (await stack.client.get("/models")).json()["models"][1]["queue"]["paused"] is True

    resumed = await call(stack, "POST", f"/queues/{LLAMA}/resume")

    assert (resumed["paused"], resumed["depths"]["pending"]) == (None, 1)
    assert (await stack.claim(LLAMA)).job_id == job_id


async def test_purge_cancels_every_waiting_job_and_no_running_one(stack: Stack) -> None:
    _ = await submit(stack, 5)
    claim = await stack.claim(LLAMA)

    answer = await call(stack, "POST", f"/queues/{LLAMA}/purge")

    assert (answer["purged"], answer["depths"]["pending"], answer["depths"]["processing"]) == (4, 0, 1)
    page = (await stack.client.get("/jobs?status=cancelled")).json()["jobs"]
    assert {job["error"]["code"] for job in page} == {"purged"}
    assert claim.job_id not in {job["job_id"] for job in page}


# -- dead letters -----------------------------------------------------------------------------------------------


async def test_dead_letters_are_listed_with_their_cause(stack: Stack) -> None:
    ids = await bury(stack, 3)

    answer = await call(stack, "GET", f"/queues/{LLAMA}/deadletter?offset=1&limit=1")

    assert (answer["total"], answer["offset"]) == (3, 1)
    [letter] = answer["jobs"]
    assert letter["job_id"] in ids
    assert (letter["status"], letter["error"]["code"], letter["last_exit"]) == ("failed", "worker_lost", "exit 137")
    assert letter["input"]["size"] == 1


async def test_named_dead_letters_are_redriven_and_others_refused_in_words(stack: Stack) -> None:
    ids = await bury(stack, 2)
    [alive] = await submit(stack)
    strangers = [new_job_id(), "nonsense", alive]

    answer = await call(stack, "POST", f"/queues/{LLAMA}/deadletter/redrive", {"ids": [ids[0], *strangers, ids[0]]})

    assert answer["redriven"] == [ids[0]]
    assert [one["code"] for one in answer["refused"]] == ["job_not_found", "job_not_found", "wrong_state"]
    assert (answer["remaining"], answer["stopped"]) == (0, None)
    document = (await stack.client.get(f"/jobs/chat/{ids[0]}")).json()
    assert (document["status"], document["attempts"], document["reaps"]) == ("pending", 0, 0)


async def test_all_dead_letters_are_redriven_at_the_given_pace(stack: Stack) -> None:
    ids = await bury(stack, 3)
    begun = time.monotonic()

    answer = await call(stack, "POST", f"/queues/{LLAMA}/deadletter/redrive", {"all": True, "per_second": 10})

    assert sorted(answer["redriven"]) == sorted(ids)
    assert 0.2 <= time.monotonic() - begun < 2
    assert (await call(stack, "GET", f"/queues/{LLAMA}/deadletter"))["total"] == 0


async def test_redrive_that_takes_too_long_says_what_remains(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.admin.REDRIVE_SECONDS", 0.05)
    _ = await bury(stack, 3)

    answer = await call(stack, "POST", f"/queues/{LLAMA}/deadletter/redrive", {"all": True, "per_second": 10})

    assert len(answer["redriven"]) == 1
    assert (answer["remaining"], "again" in answer["stopped"]) == (2, True)


async def test_dropped_dead_letter_leaves_the_list_and_keeps_its_record(stack: Stack) -> None:
    [job_id] = await bury(stack, 1)

    assert (await call(stack, "DELETE", f"/queues/{LLAMA}/deadletter/{job_id}"))["dropped"] is True
    again = await stack.admin.delete(f"/queues/{LLAMA}/deadletter/{job_id}")

    assert (again.status_code, again.json()["code"]) == (404, "deadletter_not_found")
    assert (await stack.client.get(f"/jobs/chat/{job_id}")).json()["status"] == "failed"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{}", 400), (b"[]", 400), (b'{"ids": [], "all": true}', 400), (b'{"all": "yes"}', 400),
        (b'{"al": true}', 400), (b'{"all": true, "per_second": 0}', 400), (b'{"all": true, "per_second": 1e9}', 400),
        (b"[" * 100_000, 400), (b'{"ids": ["\xff"]}', 400), (b'{"ids": ["' + b"x" * 1_100_000 + b'"]}', 413),
    ],
)  # fmt: skip
async def test_wrong_redrive_order_is_refused(stack: Stack, body: bytes, status: int) -> None:
    response = await stack.admin.post(
        f"/queues/{LLAMA}/deadletter/redrive", content=body, headers={"content-type": "application/json"}
    )

    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"


async def test_unknown_model_and_route_are_404_in_words(stack: Stack) -> None:
    for method, path in (("GET", "/queues/none"), ("POST", "/queues/none/pause"), ("GET", "/queues/none/deadletter")):
        response = await stack.admin.request(method, path)
        assert (response.status_code, response.json()["code"]) == (404, "model_not_found")
        assert LLAMA in response.json()["detail"]
    assert (await stack.admin.get("/jobs")).status_code == 404
    assert (await stack.admin.delete(f"/queues/{LLAMA}")).status_code == 405


# -- who is let in ----------------------------------------------------------------------------------------------


async def answers(stack: Stack, **headers: str) -> tuple[int, str]:
    response = await stack.admin.get(
        "/queues", headers={name.replace("_", "-"): text for name, text in headers.items()}
    )
    return response.status_code, response.json().get("code", "")


@pytest.mark.parametrize("host", ["localhost", "localhost:8081", "127.0.0.1:8081", "[::1]:8081", "LOCALHOST"])
async def test_names_of_loopback_are_served(stack: Stack, host: str) -> None:
    assert await answers(stack, host=host) == (200, "")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", "10.0.0.1", "", "[::1"]
)
async def test_other_hosts_are_refused_against_dns_rebinding(stack: Stack, host: str) -> None:
    assert await answers(stack, host=host) == (403, "forbidden_host")


async def test_requests_of_other_origins_are_refused(stack: Stack) -> None:
    host = "localhost:8081"
    assert await answers(stack, host=host, origin="http://localhost:8081") == (200, "")
    assert await answers(stack, host=host, origin="http://localhost:9999") == (403, "forbidden_origin")
    assert await answers(stack, host=host, origin="https://evil.example") == (403, "forbidden_origin")
    assert await answers(stack, host=host, origin="null") == (403, "forbidden_origin")
    assert await answers(stack, host=host, origin="http://[") == (403, "forbidden_origin")
    assert await answers(stack, host=host, sec_fetch_site="cross-site") == (403, "forbidden_origin")
    assert await answers(stack, host=host, sec_fetch_site="same-origin") == (200, "")


async def test_body_that_a_page_may_send_unasked_is_refused(stack: Stack) -> None:
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        response = await stack.admin.post(f"/queues/{LLAMA}/pause", content=b"x", headers={"content-type": media_type})
        assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")


async def test_token_is_needed_once_there_is_one_and_any_host_will_do(make_stack: MakeStack, tmp_path: Path) -> None:
    path = tmp_path / "token"
    _ = path.write_text(f"{TOKEN}\n")
    stack = await make_stack(admin_host="0.0.0.0", admin_token_file=str(path))

    assert await answers(stack, host="relayq-admin:8081") == (401, "unauthorized")
    assert await answers(stack, authorization=f"Bearer {TOKEN[:-1]}") == (401, "unauthorized")
    assert await answers(stack, authorization=f"Basic {TOKEN}") == (401, "unauthorized")
    assert await answers(stack, host="relayq-admin:8081", authorization=f"bearer {TOKEN}") == (200, "")
    response = await stack.admin.get("/queues")
    assert response.headers["www-authenticate"].startswith("Bearer")


async def test_admin_routes_are_not_on_the_public_port(stack: Stack) -> None:
    for path in ("/queues", f"/queues/{LLAMA}"):
        assert (await stack.client.get(path)).status_code == 404


async def test_two_operators_at_once_redrive_each_letter_once(stack: Stack) -> None:
    ids = await bury(stack, 5)
    path = f"/queues/{LLAMA}/deadletter/redrive"
    responses: list[httpx.Response] = await asyncio.gather(
        *(stack.admin.post(path, json={"all": True, "per_second": 50}) for _ in range(2))
    )

    redriven = [one for response in responses for one in response.json()["redriven"]]
    assert sorted(set(redriven)) == sorted(ids)
    assert (await call(stack, "GET", f"/queues/{LLAMA}"))["depths"]["pending"] == 5
