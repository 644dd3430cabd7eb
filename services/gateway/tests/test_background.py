"""Background tasks: verdicts counted once, seed completions, readiness, and what a dead task means."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from gateway_stack import MakeStack, Stack
from prometheus_client import REGISTRY

from gateway import health, seed_completions
from gateway.app import check_server
from gateway.outbox import Outbox
from gateway.rates import Rates
from gateway.seed_completions import SeedCompletions
from gateway.tasks import Tasks
from queuecore.broker import Failure, ServerFacts
from queuecore.errors import BlobUnavailable, BrokerUnavailable, ConfigurationError, OutcomeUnknown
from queuecore.names import new_job_id
from queuecore.notice import NewNotice
from queuecore.testing.blobs import MemoryStore
from queuecore.testing.clock import eventually
from queuecore.testing.memory import MemoryQueue, MemoryServer
from queuecore.testing.requirement import requirement

SOME_ID = "01a22fb3-1c40-706f-b640-899972e3a6c8"  # fixed: names of tests may not differ between workers
pytestmark = pytest.mark.anyio


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def submit(stack: Stack) -> str:
    return (await stack.client.post("/jobs/echo?model=large", content=b"x")).json()["job_id"]


async def unplanned(_: NewNotice) -> None:
    raise AssertionError("nobody asked to be told")


# -- the outbox -------------------------------------------------------------------------------------------------


async def test_every_verdict_is_observed_once_and_acknowledged(stack: Stack) -> None:
    before = {
        outcome: sample("relayq_jobs_finished_total", model="large", outcome=outcome)
        for outcome in ("completed", "failed", "cancelled")
    }
    waits = sample("relayq_end_to_end_seconds_sum", model="large")
    failed = sample("relayq_jobs_failed_total", model="large", error_code="inference_error")
    for _ in range(3):
        _ = await submit(stack)
    stack.queue.clock.advance(2000)
    await stack.complete(await stack.claim("large"), b"1")
    _ = await stack.brokers["large"].fail(await stack.claim("large"), Failure("inference_error", "no", 500))
    _ = await stack.brokers["large"].cancel(stack.job_ids[-1])

    def all_observed() -> bool:
        return all(
            sample("relayq_jobs_finished_total", model="large", outcome=outcome) == count + 1
            for outcome, count in before.items()
        )

    assert await eventually(all_observed)
    assert (await stack.brokers["large"].counts()).outbox == 0
    assert sample("relayq_end_to_end_seconds_sum", model="large") == waits + 6
    assert sample("relayq_jobs_failed_total", model="large", error_code="inference_error") == failed + 1


@requirement("notice:events:until-acknowledged")
async def test_verdict_whose_acknowledgement_failed_is_not_counted_yet(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = await make_stack()
    await stack.gateway.tasks.stop()
    _ = await submit(stack)
    await stack.complete(await stack.claim("large"), b"1")
    broker = stack.brokers["large"]
    outbox = Outbox(broker, stack.queue.server, "test", Rates(), plan=unplanned)
    before = sample("relayq_jobs_finished_total", model="large", outcome="completed")

    async def lost(entries: Sequence[str]) -> None:
        raise OutcomeUnknown("lost")

    monkeypatch.setattr(broker, "acknowledge", lost)
    with pytest.raises(OutcomeUnknown):
        _ = await outbox.round(wait_seconds=0)

    assert sample("relayq_jobs_finished_total", model="large", outcome="completed") == before


async def test_outbox_goes_on_after_redis_was_away(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sample("relayq_jobs_finished_total", model="large", outcome="completed")
    server = stack.queue.server
    calls = 0

    async def away(job_ids: Sequence[str]) -> dict[str, None]:
        nonlocal calls
        calls += 1
        raise BrokerUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(server, "records", away)
        _ = await submit(stack)
        await stack.complete(await stack.claim("large"), b"1")
        assert await eventually(lambda: calls >= 1)
    _ = await submit(stack)
    await stack.complete(await stack.claim("large"), b"1")

    assert await eventually(
        lambda: sample("relayq_jobs_finished_total", model="large", outcome="completed") == before + 1
    )


# -- completions of the seed's relays ---------------------------------------------------------------------------


def message(job_id: str, **more: object) -> str:
    return json.dumps({"job_id": job_id, "status": "completed", "result_key": f"{job_id}/result.json"} | more)


@pytest.mark.parametrize(
    "payload",
    [
        "", "x", "[]", "{}", "null", "\ud800", "[" * 50_000, message("../etc"), message(SOME_ID, status="pending"),
        message(SOME_ID, status=1), message(SOME_ID, result_key="other/result.json"),
        message(SOME_ID, result_key=None), " " * 70_000,
    ],
)  # fmt: skip
async def test_malformed_completion_is_ignored(stack: Stack, payload: str) -> None:
    seed = SeedCompletions(stack.brokers["large"], stack.store)

    outcome, why = await seed.apply(payload)

    assert outcome == "malformed"
    assert why


@pytest.mark.parametrize("rest", ["../x", "a/../b", "", "/a", "a//b", "a b", "."])
def test_result_key_outside_the_jobs_folder_is_refused(rest: str) -> None:
    job_id = new_job_id()

    with pytest.raises(ValueError, match="result_key"):
        _ = seed_completions.parse(message(job_id, result_key=f"{job_id}/{rest}"))


async def foreign_run(stack: Stack) -> str:
    """A foreign relay: it popped the job and holds a lease of its own, and knows nothing of our claims."""
    job_id = await submit(stack)
    specification = stack.queue.specifications["large"]
    specification.state.pending.remove(job_id)
    specification.state.processing.append(job_id)
    return job_id


async def test_completion_of_a_foreign_relay_is_applied_when_the_flag_is_on(make_stack: MakeStack) -> None:
    stack = await make_stack(accept_seed_completions=True)
    job_id = await foreign_run(stack)
    assert isinstance(stack.store, MemoryStore)
    stack.store.objects[f"{job_id}/result.json"] = b'{"text":"hi"}'

    _ = await eventually(lambda: len(stack.queue.listeners) == 1 + len(stack.brokers))
    applied = sample("relayq_seed_completions_total", model="large", outcome="applied")

    stack.queue.publish("large", "completed", message(job_id))

    async def completed() -> bool:
        return (await stack.client.get(f"/jobs/echo/{job_id}")).json()["status"] == "completed"

    assert await eventually(completed)
    assert sample("relayq_seed_completions_total", model="large", outcome="applied") == applied + 1
    assert (await stack.client.get(f"/jobs/echo/{job_id}/result")).content == b'{"text":"hi"}'


async def test_completion_is_nothing_when_the_flag_is_off(stack: Stack) -> None:
    job_id = await foreign_run(stack)
    stack.objects[f"{job_id}/result.json"] = b"{}"

    stack.queue.publish("large", "completed", message(job_id))
    await asyncio.sleep(0.05)  # nothing can be waited for: nobody listens

    assert (await stack.client.get(f"/jobs/echo/{job_id}")).json()["status"] != "completed"


async def test_completion_is_refused_without_an_object_and_while_a_claim_of_ours_is_current(stack: Stack) -> None:
    seed = SeedCompletions(stack.brokers["large"], stack.store)
    job_id = await foreign_run(stack)
    assert await seed.apply(message(job_id)) == ("refused", "its result is not in the store")

    ours = await submit(stack)
    _ = await stack.claim("large")
    stack.objects[f"{ours}/result.json"] = b"{}"
    assert await seed.apply(message(ours)) == ("refused", "")
    assert (await stack.client.get(f"/jobs/echo/{ours}")).json()["status"] == "processing"


async def test_failure_of_a_foreign_relay_keeps_a_bounded_text(stack: Stack) -> None:
    seed = SeedCompletions(stack.brokers["large"], stack.store)
    job_id = await foreign_run(stack)

    outcome, _ = await seed.apply(message(job_id, status="failed", error="e" * 9000))

    document = (await stack.client.get(f"/jobs/echo/{job_id}")).json()
    assert (outcome, document["status"]) == ("applied", "failed")
    assert len(document["error"]["message"]) == seed_completions.LONGEST_ERROR_CHARACTERS


# -- health -----------------------------------------------------------------------------------------------------


class StoreAway(MemoryStore):
    away = True

    async def check(self) -> None:
        if self.away:
            raise BlobUnavailable("probe", "permission denied")


@requirement("start:any:eviction-refused", "start:any:loss-window-said")
async def test_ready_says_what_is_wrong_and_recovers(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS_EVERY_SECONDS", "STORE_EVERY_SECONDS"):
        monkeypatch.setattr(f"gateway.health.{name}", 0)
    store = StoreAway()
    stack = await make_stack(store=store)

    response = await stack.client.get("/health/ready")
    assert (response.status_code, response.json()["code"]) == (503, "not_ready")
    assert "permission denied" in response.json()["problems"]["store"]
    assert list(response.json()["problems"]) == ["store"]

    store.away = False
    assert (await stack.client.get("/health/ready")).json() == {
        "status": "ready", "durability": "full: appendfsync always",
    }  # fmt: skip

    stack.queue.server.known = stack.queue.server.known._replace(maxmemory_policy="allkeys-lru")
    response = await stack.client.get("/health/ready")
    assert "noeviction" in response.json()["problems"]["redis"]

    async def away() -> None:
        raise BrokerUnavailable("connection refused")

    monkeypatch.setattr(stack.queue.server, "facts", away)
    monkeypatch.setattr(stack.queue.server, "ping", away)
    response = await stack.client.get("/health/ready")
    assert "connection refused" in response.json()["problems"]["redis"]


async def test_checks_are_not_made_for_every_probe(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def facts() -> ServerFacts:
        nonlocal asked
        asked += 1
        return stack.queue.server.known

    monkeypatch.setattr(stack.queue.server, "facts", facts)
    monkeypatch.setattr("gateway.health.REDIS_EVERY_SECONDS", 60)
    for _ in range(20):
        assert (await stack.client.get("/health/ready")).status_code == 200

    assert asked <= 1


@pytest.mark.parametrize(
    ("appendonly", "fsync", "word"),
    [(False, "always", "none"), (True, "always", "full"), (True, "everysec", "last second"), (True, "no", "kernel"),
     (None, "", "unknown")],
)  # fmt: skip
def test_durability_window_is_said(appendonly: bool | None, fsync: str, word: str) -> None:
    assert word in health.durability(ServerFacts("", "", "noeviction", appendonly, fsync))


@requirement("start:any:eviction-refused")
async def test_server_that_evicts_jobs_stops_the_start() -> None:
    queue = MemoryQueue()
    await check_server(queue.server)
    queue.server.known = queue.server.known._replace(maxmemory_policy="")
    await check_server(queue.server)
    queue.server.known = queue.server.known._replace(maxmemory_policy="allkeys-lru")

    with pytest.raises(ConfigurationError, match="noeviction"):
        await check_server(queue.server)


async def test_server_that_forbids_its_facts_is_trusted_if_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    server: MemoryServer = MemoryQueue().server

    async def forbidden() -> ServerFacts:
        raise BrokerUnavailable("NOPERM")

    monkeypatch.setattr(server, "facts", forbidden)
    await check_server(server)

    assert (await health.facts_of(server)).maxmemory_policy == ""


async def test_task_that_does_not_go_round_makes_the_process_not_live(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await stack.client.get("/health/live")).status_code == 200
    monkeypatch.setattr("gateway.health.OLDEST_TASK_SECONDS", -1.0)

    response = await stack.client.get("/health/live")

    assert (response.status_code, response.json()["code"]) == (503, "not_live")
    assert "outbox large" in response.json()["detail"]
    assert stack.gateway.edge.health.probe().live is False


async def test_task_that_dies_is_the_first_to_end_and_the_others_are_stopped() -> None:
    tasks = Tasks()
    stopped: list[str] = []

    async def lives(beat: Callable[[], None]) -> None:
        beat()
        try:
            _ = await asyncio.Event().wait()
        finally:
            stopped.append("lives")

    async def dies(beat: Callable[[], None]) -> None:
        raise KeyError("a bug")

    tasks.start("lives", lives)
    tasks.start("dies", dies)
    ended = await tasks.first_end()

    assert (ended.get_name(), type(ended.exception())) == ("dies", KeyError)
    assert set(tasks.ages()) == {"lives", "dies"}
    await tasks.stop()
    assert stopped == ["lives"]


async def test_subscription_that_ends_ends_the_task(stack: Stack) -> None:
    class Silent:
        async def changes(self) -> AsyncIterator[str]:
            yield ""

    beats: list[int] = []
    with pytest.raises(RuntimeError, match="subscription ended"):
        await stack.gateway.edge.waiters.listen(Silent(), lambda: beats.append(1))  # pyright: ignore[reportArgumentType]
    assert beats
