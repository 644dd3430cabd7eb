"""``python -m relay``: exit codes, SIGTERM at every moment, a server that is cut, restarted, frozen."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from queuecore.broker import Claim, Failure, Worker
from queuecore.clock import monotonic
from queuecore.errors import BrokerError
from queuecore.names import new_claim_id
from queuecore.redis import RedisQueue
from queuecore.settings import CommonSettings, Secret
from queuecore.telemetry.tracing import Tracer
from queuecore.testing.clock import eventually
from queuecore.testing.proxy import SwallowingProxy
from queuecore.testing.raw_http import RawExchange, RawHttpServer
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess, free_port
from queuecore.testing.yard import Process, Yard
from relay.liveness import Listener, Liveness
from relay.loop import Relay
from relay.progress import Progress
from relay.settings import RelaySettings
from relay.tally import Tally

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyProcess]:
    with ValkeyProcess(appendonly="always") as server:
        yield server


@pytest.fixture
async def yard(valkey: ValkeyProcess, model: RawHttpServer, tmp_path: Path) -> AsyncIterator[Yard]:
    made = Yard(valkey, model, tmp_path, lease_seconds=2)  # pyright: ignore[reportArgumentType]  it only asks for its url
    await made.flush()
    yield made
    await made.aclose()


class Unregistered(Liveness):
    """A relay whose liveness never came up: its claims name no connection."""

    @property
    def client(self) -> str:
        return ""

    @property
    def looked_at(self) -> float:
        return 0.0

    async def connected(self, within_seconds: float) -> bool:
        return False

    def hold(self, claim: Claim, listener: Listener) -> None:
        return

    def let_go(self) -> None:
        return


def lines(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.log.read_text("utf-8").splitlines() if line.endswith("}")]


def logged(process: Process) -> list[str]:
    return [line["event"] for line in lines(process)]


async def until(process: Process, event: str, within: float = 15) -> None:
    _ = await eventually(lambda: event in logged(process), within=within)


async def blocked(yard: Yard) -> None:
    async def popping() -> bool:
        try:
            return "cmd=blmove" in await yard.link.call("CLIENT", "LIST")
        except BrokerError:
            return False  # the server was just restarted

    _ = await eventually(popping, within=15)


async def hanging(exchange: RawExchange) -> None:
    _ = await exchange.read_body()
    await exchange.until_closed()


def catches_sigterm(pid: int) -> bool:
    text = Path(f"/proc/{pid}/status").read_text("ascii")
    found = re.search(r"^SigCgt:\s*(\S+)$", text, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (signal.SIGTERM - 1) & 1)


async def pass_time(seconds: float) -> None:
    end = monotonic() + seconds
    _ = await eventually(lambda: monotonic() >= end, within=seconds + 5)


# -- exit codes ---------------------------------------------------------------------------------------------------


@requirement("relay:exit:code-says-what-happened")
async def test_a_process_completes_a_job_and_ends_with_0(yard: Yard, model: RawHttpServer) -> None:
    job_id = await yard.submit(b"hello")
    relay = await yard.relay()
    assert await relay.ended() == 0
    record = await yard.status(job_id)
    assert (record.status, record.claims) == ("completed", 1)
    assert logged(relay) == [
        "service.started", "inference.readied", "job.claimed", "job.completed", "service.stopped"
    ]  # fmt: skip
    assert await yard.operator.residue() == []
    assert [exchange.body for exchange in model.exchanges] == [b"hello"]


@requirement("relay:exit:code-says-what-happened")
async def test_an_empty_queue_ends_the_process_with_0_in_time(yard: Yard) -> None:
    relay = await yard.relay(RELAY_QUEUE_POP_TIMEOUT_SECONDS="7")  # longer than redis-py's own 5 s (case C1)
    await blocked(yard)
    began = monotonic()
    assert await relay.ended() == 0
    assert abs(monotonic() - began - 7) < 2
    assert "queue.emptied" in logged(relay)


@requirement("relay:exit:code-says-what-happened")
@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RELAY_MODEL": "nobody"}, "RELAY_MODEL: 'nobody' is not in"),
        ({"RELAY_MODLE": "m"}, "RELAY_MODLE: unknown setting"),
        ({"MODELS_FILE": "/nowhere.yaml"}, "MODELS_FILE"),
        ({"BLOBS_URL": ""}, "BLOBS_URL: required"),
        ({"BLOBS_URL": "ftp://x"}, "BLOBS_URL"),
        ({"REDIS_URL": "redis+cluster://x"}, "REDIS_URL"),
        ({"ENCRYPTION_KEYS": "not-a-key"}, "ENCRYPTION_KEYS"),
    ],
)
async def test_a_wrong_setting_ends_the_process_with_1_in_one_line(
    yard: Yard, environ: dict[str, str], words: str
) -> None:
    relay = await yard.relay(faultpoint=False, **environ)
    assert await relay.ended() == 1
    text = relay.log.read_text("utf-8")
    assert words in text
    assert "Traceback" not in text
    assert "configuration.refused" in logged(relay)


@requirement("relay:exit:code-says-what-happened")
async def test_a_model_that_never_gets_ready_ends_the_process_with_1(yard: Yard, model: RawHttpServer) -> None:
    model.health = "503 Loading"
    job_id = await yard.submit()
    relay = await yard.relay(RELAY_READY_TIMEOUT_SECONDS="0.5")
    assert await relay.ended() == 1
    assert "was not ready within 0.5 s; GET /health gave last: 503" in relay.log.read_text("utf-8")
    assert (await yard.status(job_id)).status == "pending"


@requirement("relay:exit:code-says-what-happened")
async def test_a_keda_job_with_nothing_to_do_ends_at_once(yard: Yard, model: RawHttpServer) -> None:
    relay = await yard.relay(RELAY_EXIT_WHEN_EMPTY="true", RELAY_QUEUE_POP_TIMEOUT_SECONDS="60")
    assert await relay.ended(10) == 0
    assert model.health_asked == 0


@requirement("relay:exit:code-says-what-happened", "verdict:complete:late-one-refused", "death:stop:lease-decides")
async def test_a_relay_stopped_past_its_lease_ends_with_3_and_the_winners_bytes_stay(
    yard: Yard, model: RawHttpServer
) -> None:
    answers = [b"first", b"second"]
    go_on = asyncio.Event()

    async def answer(exchange: RawExchange) -> None:
        _ = await exchange.read_body()
        mine = answers.pop(0)
        if mine == b"first":
            _ = await go_on.wait()
        await exchange.answer("200 OK", mine)

    model.handler = answer
    job_id = await yard.submit()
    late = await yard.relay()
    _ = await eventually(lambda: len(answers) == 1, within=15)  # the model has the whole request
    late.signal(signal.SIGSTOP)
    assert [one.outcome for one in await yard.broker.reap(first_seen_grace_ms=0)] == ["live"]

    async def requeued() -> bool:
        return "requeued" in [one.outcome for one in await yard.broker.reap(first_seen_grace_ms=0)]

    _ = await eventually(requeued, within=10)
    assert await (await yard.relay()).ended() == 0
    go_on.set()
    late.signal(signal.SIGCONT)
    assert await late.ended() == 3
    record = await yard.status(job_id)
    assert record.status == "completed"
    async with yard.store.get(record.result_key) as chunks:
        assert b"".join([chunk async for chunk in chunks]) == b"second"
    assert len(await yard.events()) == 1
    assert "claim.lost" in logged(late)


async def test_a_fault_of_the_relay_itself_ends_the_process_with_1_and_says_where() -> None:
    text = "import relay.process as p\nasync def serve(_): raise ZeroDivisionError('a bug')\np.serve = serve\np.main()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 1
    line = json.loads(output)
    assert (line["event"], line["error"]) == ("service.failed", "ZeroDivisionError: a bug")
    assert "in serve" in line["stack"]


# -- SIGTERM ------------------------------------------------------------------------------------------------------


@requirement("relay:exit:code-says-what-happened")
@pytest.mark.parametrize("after_seconds", [0, 0.05, 0.1, 0.2, 0.4])
async def test_sigterm_right_after_the_start_ends_with_0(yard: Yard, after_seconds: float) -> None:
    relay = await yard.relay(RELAY_QUEUE_POP_TIMEOUT_SECONDS="0")
    # From Python's first line of ours on; before it the signal is the interpreter's, or the container's init's.
    _ = await eventually(lambda: catches_sigterm(relay.pid), within=15, every=0.001)
    await pass_time(after_seconds)
    relay.signal(signal.SIGTERM)
    began = monotonic()
    assert await relay.ended(10) == 0
    assert monotonic() - began < 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_the_model_is_awaited_or_the_pop_waits_ends_with_0(
    yard: Yard, model: RawHttpServer, number: signal.Signals
) -> None:
    model.health = "503 Loading"
    awaiting = await yard.relay()
    await until(awaiting, "inference.awaited")
    awaiting.signal(number)
    began = monotonic()
    assert await awaiting.ended(10) == 0
    model.health = "200 OK"
    popping = await yard.relay(RELAY_QUEUE_POP_TIMEOUT_SECONDS="0")
    await blocked(yard)
    popping.signal(number)
    assert await popping.ended(10) == 0
    assert monotonic() - began < 10


@requirement("relay:sigterm:drain-then-release", "place:release:back-at-the-head")
async def test_sigterm_mid_job_gives_it_back_when_the_drain_time_is_over(yard: Yard, model: RawHttpServer) -> None:
    model.handler = hanging
    job_id = await yard.submit()
    relay = await yard.relay(RELAY_DRAIN_SECONDS="1")
    _ = await eventually(lambda: model.exchanges, within=15)
    relay.signal(signal.SIGTERM)
    began = monotonic()
    assert await relay.ended(15) == 0
    assert 0.9 < monotonic() - began < 5
    record = await yard.status(job_id)
    assert (record.status, record.reaps, record.failures) == ("pending", 0, 0)
    assert {"drain.started", "job.released"} <= set(logged(relay))


@requirement("sigterm:claim:no-job-stranded")
async def test_sigterm_in_the_instant_a_job_arrives_loses_and_delays_none_in_200_rounds(yard: Yard) -> None:
    settings = RelaySettings(model="m", queue_pop_timeout_seconds=0, inference_url=yard.mock.url, drain_seconds=5)
    outcomes: list[str] = []
    for number in range(200):
        queue = RedisQueue(CommonSettings(redis_url=Secret(yard.common.redis_url.reveal())), name="round")
        stop, progress = asyncio.Event(), Progress()

        async def store() -> Any:
            return yard.store

        relay = Relay(
            settings,
            yard.config,
            queue.broker("m", yard.config),
            Unregistered(),
            store,
            progress=progress,
            stop=stop,
            worker_name=f"round-{number}",
            tally=Tally("m"),
            tracer=Tracer(),
        )
        running = asyncio.create_task(relay.run())
        await blocked(yard)
        _ = asyncio.get_running_loop().call_later(number % 20 / 10_000, stop.set)  # 0 to 2 ms around the push
        job_id = await yard.submit()
        assert await asyncio.wait_for(running, 10) == 0
        record = await yard.status(job_id)
        assert record.status in {"pending", "completed"}, record
        if record.status == "pending":
            next_claim = await yard.broker.claim(Worker("next"), new_claim_id())
            assert next_claim is not None
            assert (next_claim.job_id, next_claim.record.reaps) == (job_id, 0)
            _ = await yard.broker.fail(next_claim, Failure("inference_error", "enough"))
        outcomes.append(record.status)
        assert await yard.operator.places() == ([], [], [], [], [])
        await queue.aclose()
    assert outcomes.count("pending") > 10  # the race was there


# -- Redis --------------------------------------------------------------------------------------------------------


@requirement("lease:renew:owner-keeps-its-job")
async def test_a_job_longer_than_its_lease_outlives_a_second_without_redis(
    yard: Yard, valkey: ValkeyProcess, model: RawHttpServer
) -> None:
    async def answer(exchange: RawExchange) -> None:
        _ = await exchange.read_body()
        await pass_time(6)  # three leases
        await exchange.answer()

    model.handler = answer
    job_id = await yard.submit()
    relay = await yard.relay()
    _ = await eventually(lambda: model.exchanges, within=15)
    valkey.kill()
    await pass_time(1)
    _ = valkey.start()
    assert await relay.ended() == 0
    record = await yard.status(job_id)
    assert (record.status, record.claims, record.reaps) == ("completed", 1, 0)
    assert len(model.exchanges) == 1
    assert len(await yard.events()) == 1
    assert {"connection.lost", "connection.restored"} <= set(logged(relay))


async def test_a_relay_waiting_for_a_job_outlives_a_restart_of_redis(yard: Yard, valkey: ValkeyProcess) -> None:
    relay = await yard.relay(RELAY_QUEUE_POP_TIMEOUT_SECONDS="60")
    for _ in range(3):
        await blocked(yard)
        valkey.kill()
        _ = valkey.start()
    await blocked(yard)
    job_id = await yard.submit()
    assert await relay.ended() == 0
    assert (await yard.status(job_id)).status == "completed"


@requirement("death:reconnect:owner-keeps-its-job")
async def test_a_relay_whose_connections_are_killed_registers_anew_and_keeps_its_job(
    yard: Yard, model: RawHttpServer
) -> None:
    model.handler = hanging
    job_id = await yard.submit()
    relay = await yard.relay()
    _ = await eventually(lambda: model.exchanges, within=15)
    before = (await yard.status(job_id)).owner_client
    assert before
    for kind in ("normal", "pubsub"):
        _ = await yard.link.call("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    async def registered() -> bool:
        after = (await yard.status(job_id)).owner_client
        return after != before and bool(await yard.queue.server.living_clients([after]))

    _ = await eventually(registered, within=2)
    _ = await yard.broker.cancel(job_id)
    assert await relay.ended() == 0
    assert (await yard.status(job_id)).reaps == 0


@requirement("unknown:claim:repeat-gives-the-same-claim", "unknown:complete:repeat-changes-nothing")
@pytest.mark.parametrize("command", ["BLMOVE", "EVALSHA"])
async def test_a_swallowed_reply_costs_nothing_but_time(
    yard: Yard, valkey: ValkeyProcess, model: RawHttpServer, command: str
) -> None:
    async with SwallowingProxy(valkey.port) as proxy:
        relay = await yard.relay(REDIS_URL=f"redis://127.0.0.1:{proxy.port}/0", RELAY_QUEUE_POP_TIMEOUT_SECONDS="20")
        await blocked(yard)
        proxy.swallow(command)
        job_id = await yard.submit()
        if command == "BLMOVE":  # this one had been sent before: break it off, and the next one's reply is lost
            _ = await yard.link.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        async def done() -> bool:
            _ = await yard.broker.reap(first_seen_grace_ms=0)  # a pop nobody saw is the reaper's to find, uncounted
            return (await yard.status(job_id)).terminal

        _ = await eventually(done, within=20)
        assert await relay.ended() == 0
    record = await yard.status(job_id)
    assert (record.status, record.claims, record.reaps) == ("completed", 1, 0)
    assert len(model.exchanges) == 1


@requirement("cancel:poll:lost-signal-costs-a-second")
async def test_a_cancel_whose_signal_is_lost_hangs_up_on_the_model_within_2_s(yard: Yard, model: RawHttpServer) -> None:
    model.handler = hanging
    job_id = await yard.submit()
    relay = await yard.relay()
    _ = await eventually(lambda: model.exchanges, within=15)
    _ = await yard.link.call("HSET", f"job:{job_id}", "cancel_requested", 1)  # the flag, and no message
    began = monotonic()
    _ = await asyncio.wait_for(model.exchanges[0].closed.wait(), 5)
    assert monotonic() - began < 2
    assert await relay.ended() == 0
    assert (await yard.status(job_id)).status == "cancelled"
    assert await yard.operator.residue() == []


async def test_a_killed_relays_connections_are_gone_at_once(yard: Yard, model: RawHttpServer) -> None:
    model.handler = hanging
    job_id = await yard.submit()
    relay = await yard.relay()
    _ = await eventually(lambda: model.exchanges, within=15)
    relay.signal(signal.SIGKILL)
    _ = await relay.ended()
    client = (await yard.status(job_id)).owner_client

    async def gone() -> bool:
        return not await yard.queue.server.living_clients([client])

    _ = await eventually(gone, within=1)
    await yard.reap_the_dead()
    model.handler = RawExchange.answer  # pyright: ignore[reportAttributeAccessIssue]
    assert await (await yard.relay()).ended() == 0
    assert (await yard.status(job_id)).reaps == 1


# -- health and metrics -------------------------------------------------------------------------------------------


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status), str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


async def test_health_and_metrics_are_served_while_a_job_runs_and_a_second_relay_on_the_port_only_warns(
    yard: Yard, model: RawHttpServer
) -> None:
    model.handler = hanging
    port = free_port()
    first_job, second_job = await yard.submit(), await yard.submit()
    first = await yard.relay(RELAY_METRICS_PORT=str(port))

    async def ready() -> bool:
        status, text = await asyncio.to_thread(get, port, "/health/ready")
        return status == 200 and "running a job" in text

    _ = await eventually(ready, within=15)

    async def renewed() -> bool:
        _, text = await asyncio.to_thread(get, port, "/metrics")
        found = re.search(r'relayq_lease_renewals_total\{model="m",outcome="renewed"\} (\S+)', text)
        return found is not None and float(found[1]) >= 2

    _ = await eventually(renewed, within=10)
    assert (await asyncio.to_thread(get, port, "/health/live"))[0] == 200

    second = await yard.relay(RELAY_METRICS_PORT=str(port))
    await until(second, "configuration.refused")
    for job_id in (first_job, second_job):
        _ = await yard.broker.cancel(job_id)
    assert await first.ended() == await second.ended() == 0


async def test_no_log_line_of_a_process_quotes_input_params_or_answer(yard: Yard, model: RawHttpServer) -> None:
    async def answer(exchange: RawExchange) -> None:
        await exchange.answer("500 Oh", b"SECRET-ANSWER " + await exchange.read_body())

    model.handler = answer
    _ = await yard.submit(b"SECRET-INPUT", prompt="SECRET-PARAM")
    relay = await yard.relay(LOG_LEVEL="DEBUG")
    assert await relay.ended() == 0
    assert "job.failed" in logged(relay)
    assert "SECRET" not in relay.log.read_text("utf-8")
