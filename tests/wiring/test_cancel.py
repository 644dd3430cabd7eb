"""DELETE of a job in every state, through a real gateway, with the message to its relay delivered or lost (G8)."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from queuecore.clock import monotonic
from queuecore.errors import WrongState
from queuecore.testing.clock import eventually
from queuecore.testing.proxy import SwallowingProxy
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock, Process, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

HANG: Final = {"mock_hang": "true"}


@pytest.fixture
async def yard(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Yard]:
    """A yard with the default lease, or with the one that a test asks for."""
    made = Yard(valkey, mock, tmp_path, lease_seconds=getattr(request, "param", 60))
    await made.flush()
    yield made
    await made.aclose()


@pytest.fixture
async def http(yard: Yard) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the yard's gateway."""
    async with httpx.AsyncClient(base_url=(await yard.gateway()).url, timeout=30) as client:
        yield client


async def submit(http: httpx.AsyncClient, **options: str) -> str:
    answer = await http.post("/jobs/echo", params=options, content=b"to be cancelled")
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job_id"])


async def document(http: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    return (await http.get(f"/jobs/echo/{job_id}")).json()


async def never_changes(yard: Yard, http: httpx.AsyncClient, job_id: str, *, runs: int) -> None:
    """Whatever is tried, by clients, relays, reapers and operators: it stays cancelled, with the one event."""
    before = await document(http, job_id)
    assert (before["status"], before["error"]["code"]) == ("cancelled", "cancelled")
    again = await http.delete(f"/jobs/echo/{job_id}")
    assert (again.status_code, again.json()) == (200, before)
    with pytest.raises(WrongState):
        await yard.broker.redrive(job_id)
    await yard.operator.push_processing(job_id)
    _ = await yard.link.call("LPUSH", "relay:m:pending", job_id)
    assert await (await yard.relay()).ended() == 0
    await yard.reap_the_dead()
    assert await document(http, job_id) == before
    assert (await http.get(f"/jobs/echo/{job_id}/result")).status_code == 404
    assert (await yard.mock.runs())[job_id] == runs
    gateway = next(process for process in yard.processes if "gateway" in process.log.name)

    async def told() -> list[str]:
        return [str(line["event_id"]) for line in gateway.lines if line["event"] == "verdict.relayed"]

    _ = await eventually(told, within=10)
    assert (await told()).count(f"{job_id}:1") == 1
    assert await yard.operator.residue() == []


# -- it waits -----------------------------------------------------------------------------------------------------


@requirement("cancel:cancel:waiting-ends-at-once", "cancel:any:cancelled-is-final")
@pytest.mark.parametrize("state", ["pending", "delayed", "paused", "ordered"])
async def test_a_waiting_job_is_cancelled_at_once_and_never_runs(
    yard: Yard, http: httpx.AsyncClient, state: str
) -> None:
    if state == "paused":
        await yard.broker.pause()
    first = await submit(http, ordering_key="k") if state == "ordered" else None
    options = {"delayed": {"not_before": "2999-01-01T00:00:00Z"}, "ordered": {"ordering_key": "k"}}
    job_id = await submit(http, **options.get(state, {}))
    counts = await yard.broker.counts()
    assert getattr(counts, state) == 1, counts
    answer = await http.delete(f"/jobs/echo/{job_id}")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    if state == "paused":
        await yard.broker.resume()
    if first is not None:
        assert await (await yard.relay()).ended() == 0
        assert (await document(http, first))["status"] == "completed"
    await never_changes(yard, http, job_id, runs=0)


# -- it runs ------------------------------------------------------------------------------------------------------


async def running(yard: Yard, http: httpx.AsyncClient, **environ: str) -> tuple[str, Process]:
    """A job that the model will never answer, and its relay."""
    job_id = await submit(http, **HANG)
    relay = await yard.relay(faultpoint=False, **environ)
    _ = await eventually(lambda: state_at_the_model(yard, job_id, "running"), within=30)
    return job_id, relay


async def state_at_the_model(yard: Yard, job_id: str, state: str) -> bool:
    return [one["state"] for one in await yard.mock.requests() if one["job_id"] == job_id] == [state]


@requirement(
    "cancel:cancel:running-is-flagged", "cancel:poll:lost-signal-costs-a-second", "cancel:any:cancelled-is-final"
)
@pytest.mark.parametrize("message", ["delivered", "lost"])
async def test_the_connection_to_the_model_is_closed_within_2_s(
    yard: Yard, http: httpx.AsyncClient, valkey: ValkeyProcess, message: str
) -> None:
    async with SwallowingProxy(valkey.port) as proxy:
        if message == "lost":
            proxy.mute()
        job_id, relay = await running(yard, http, REDIS_URL=f"redis://127.0.0.1:{proxy.port}/0")
        answer = await http.delete(f"/jobs/echo/{job_id}")
        asked_at = monotonic()
        told = answer.json()
        assert (answer.status_code, told["status"], told["cancel_requested"]) == (202, "processing", True)
        _ = await eventually(lambda: state_at_the_model(yard, job_id, "disconnected"), within=10)
        assert monotonic() - asked_at < 2
        assert await relay.ended() == 0
        assert proxy.dropped == (1 if message == "lost" else 0)
    await never_changes(yard, http, job_id, runs=1)


@requirement("cancel:any:flagged-ends-cancelled", "cancel:any:cancelled-is-final")
async def test_a_cancelled_job_whose_relay_is_killed_before_it_heard_ends_cancelled(
    yard: Yard, http: httpx.AsyncClient
) -> None:
    _ = await yard.ready_reaper()
    job_id, relay = await running(yard, http)
    relay.signal(signal.SIGSTOP)
    assert (await http.delete(f"/jobs/echo/{job_id}")).status_code == 202
    relay.signal(signal.SIGKILL)
    killed_at = monotonic()
    other = await yard.relay(RELAY_QUEUE_POP_TIMEOUT_SECONDS="60")  # would take it, were it given back
    _ = await yard.finished(job_id)
    assert monotonic() - killed_at < 5
    other.signal(signal.SIGTERM)
    assert await other.ended() == 0
    await never_changes(yard, http, job_id, runs=1)


@requirement("cancel:any:flagged-ends-cancelled", "cancel:any:cancelled-is-final", "verdict:complete:late-one-refused")
@pytest.mark.parametrize("yard", [5], indirect=True)
async def test_a_relay_stopped_while_its_job_is_cancelled_and_reaped_changes_nothing_later(
    yard: Yard, http: httpx.AsyncClient
) -> None:
    _ = await yard.ready_reaper(REAPER_INTERVAL_SECONDS="0.2")
    job_id, relay = await running(yard, http)
    relay.signal(signal.SIGSTOP)
    assert (await http.delete(f"/jobs/echo/{job_id}")).status_code == 202
    _ = await yard.finished(job_id)
    relay.signal(signal.SIGCONT)
    assert await relay.ended() == 3, relay.log.read_text("utf-8")
    await never_changes(yard, http, job_id, runs=1)


@requirement("cancel:any:cancelled-is-final")
async def test_what_a_delete_in_the_instant_of_a_run_was_told_holds(yard: Yard, http: httpx.AsyncClient) -> None:
    relay = await yard.relay(RELAY_MAX_JOBS="0", RELAY_QUEUE_POP_TIMEOUT_SECONDS="60")
    await yard.idle(relay)
    told: dict[str, int] = {}
    for number in range(60):
        if number % 3 == 2:
            _ = await submit(http, mock_delay_seconds="0.1")  # the relay is busy: the next one waits
        job_id = await submit(http, mock_delay_seconds="0.02")

        async def reached(*statuses: str, job_id: str = job_id) -> bool:
            return (await yard.status(job_id)).status in statuses

        if number % 3 == 1:
            _ = await eventually(lambda reached=reached: reached("processing", "completed"), within=10, every=0.001)
        elif number % 10 == 0:
            _ = await eventually(lambda reached=reached: reached("completed"), within=10, every=0.001)
        told[job_id] = (await http.delete(f"/jobs/echo/{job_id}")).status_code
    for job_id, status_code in told.items():
        record = await yard.finished(job_id)
        assert record.status == ("completed" if status_code == 409 else "cancelled"), (status_code, record)
    assert set(told.values()) == {200, 202, 409}, Counter(told.values())
    assert (await yard.mock.runs())[next(job for job, code in told.items() if code == 409)] == 1

    async def all_over() -> bool:
        return await yard.operator.residue() == []

    _ = await eventually(all_over, within=10)
