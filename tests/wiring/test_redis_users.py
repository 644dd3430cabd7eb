"""The Redis users of compose.yaml: each can do its service's whole work, and has no command that it does not need."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from redis.exceptions import ResponseError

from queuecore.broker import Breaker, Claim, Dedup, Failure, NewJob, Progress, Result, Reuse, Worker
from queuecore.config import ModelConfig
from queuecore.errors import BrokerUnavailable, ClaimLost
from queuecore.job import Status
from queuecore.names import new_claim_id, new_job_id
from queuecore.notice import Attempt, NewNotice, NoticeStatus
from queuecore.providers import Provider, gate_of
from queuecore.redis import TRANSPORTS, RedisQueue
from queuecore.redis.client import Link
from queuecore.redis.scripts import load
from queuecore.redis.scripts import names as verbs
from queuecore.reservation import Reservation, Scope
from queuecore.response_cache import cache_key
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import eventually
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

ROOT: Final = Path(__file__).parents[2]
USERS: Final = ROOT / "deploy" / "valkey" / "users.acl"
RENDER: Final = ROOT / "deploy" / "valkey" / "render.sh"
# Quotes, blanks, percent signs and more: the digest in the file does not care, and neither may the client.
PASSWORDS: Final = {
    "gateway": "p@s:s#w/o?r&d %+=",
    "relay": "p'\"$`\\ss",
    "reaper": "пароль 1e6",
    "operator": "operator",
}
CONFIGS: Final = {
    transport: ModelConfig(
        service_type="t",
        operations={"run": "/run"},
        lease_seconds=1,
        transport=transport,
        result_list=transport == "sortedset",
    )
    for transport in TRANSPORTS
}
GATE: Final = gate_of("m", [], "acme", Provider(requests_per_minute=99, tokens_per_minute=99_000, concurrent=99), 1_000)
WORKER: Final = Worker("worker")


@pytest.fixture(scope="module")
def acl_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("acl") / "users.acl"
    variables = {f"VALKEY_{name.upper()}_PASSWORD": password for name, password in PASSWORDS.items()}
    done = subprocess.run(["sh", RENDER, USERS], env={**os.environ, **variables}, capture_output=True, check=True)
    _ = path.write_bytes(done.stdout)
    return path


@pytest.fixture
def server(acl_file: Path) -> Iterator[ValkeyProcess]:
    with ValkeyProcess("--aclfile", str(acl_file)) as process:
        yield process


def settings(server: ValkeyProcess, user: str) -> CommonSettings:
    return CommonSettings(
        redis_url=Secret(server.url), redis_username=user, redis_password=Secret(PASSWORDS.get(user, ""))
    )


@asynccontextmanager
async def queue_of(server: ValkeyProcess, user: str) -> AsyncGenerator[RedisQueue]:
    queue = RedisQueue(settings(server, user), name=f"test-{user}")
    try:
        yield queue
    finally:
        await queue.aclose()


@pytest.fixture
async def operator(server: ValkeyProcess) -> AsyncIterator[Link]:
    link = Link(settings(server, "operator"), name="operator")
    yield link
    await link.aclose()


async def submit(queue: RedisQueue, model: str, count: int = 1, **more: Any) -> list[str]:
    broker = queue.broker(model, CONFIGS[model])
    ids = [new_job_id() for _ in range(count)]
    for job_id in ids:
        scope = Scope("t", "jobs/t", job_id)
        _ = await queue.reservations.reserve(scope, "token")
        await queue.reservations.free(scope, "token")
        _ = await queue.reservations.reserve(scope, "token")
        held = Reservation(scope, "token", "f")
        _ = await broker.submit(NewJob(id=job_id, fields={"service_type": "t"}, reservation=held, **more))
    return ids


async def claim(queue: RedisQueue, model: str, **more: Any) -> Claim:
    found = await queue.broker(model, CONFIGS[model], GATE).claim(WORKER, new_claim_id(), **more)
    assert found is not None
    return found


@asynccontextmanager
async def listening(queue: RedisQueue) -> AsyncGenerator[str]:
    """A subscription to the cancel channel; the connection it reports."""
    clients: list[str] = []

    async def listen() -> None:
        async for _ in queue.signals.cancels("list", clients.append):
            pass

    task = asyncio.ensure_future(listen())
    _ = await eventually(lambda: clients)
    yield clients[0]
    _ = task.cancel()
    _ = await asyncio.wait([task])


async def work_as_gateway(gateway: RedisQueue, relay: RedisQueue, reaper: RedisQueue, model: str) -> None:
    broker = gateway.broker(model, CONFIGS[model])
    await gateway.server.ping()
    facts = await gateway.server.facts()
    assert facts.maxmemory_policy == "noeviction"
    _ = await gateway.server.now_ms()
    assert (await gateway.buckets.spend("t:requests", 1, capacity=10, window_ms=1)).allowed
    event_id = f"{new_job_id()}:1"
    assert await gateway.notices.plan(NewNotice(event_id, "e", "m", "t", "https://h/", "https://h:443", "{}"))
    (due,) = await gateway.notices.due("t", limit=1, per_target=1, lease_ms=1)
    assert await gateway.notices.settle(due, Attempt(at=1, outcome="parked"), NoticeStatus.PARKED, retain_ms=1_000)
    assert await gateway.notices.get(event_id)
    assert (await gateway.notices.page())[0]
    assert await gateway.notices.parked()
    assert await gateway.notices.redeliver(event_id)
    assert await asyncio.wait_for(anext(aiter(gateway.signals.changes())), 5) == ""  # connected
    completions = asyncio.ensure_future(anext(aiter(gateway.signals.completions(model))))
    first, second, third, *_ = await submit(gateway, model, 5)
    _ = await submit(gateway, model, 2, ordering_key="k")
    _ = await submit(gateway, model, dedup=Dedup(f"https://h/{model}"))
    _ = await submit(gateway, model, reuse=Reuse(cache_key("e", model)))
    await gateway.cache.put(cache_key("r", model), "body", keep_ms=1000)
    _ = await gateway.cache.get(cache_key("r", model)), await gateway.cache.drop(cache_key("r", model))
    assert await gateway.cache.clear() >= 1
    _ = await submit(gateway, model, priority="high" if model != "list" else "true")
    assert await broker.position(second) is not None
    _ = await broker.counts()
    _ = await gateway.server.records([first])
    _ = await broker.jobs(limit=2)
    running = await claim(relay, model)
    assert (await broker.owners()) == []
    _ = await broker.cancel(running.job_id)
    _ = await broker.cancel(third)
    await broker.pause()
    await broker.resume()
    dead = await claim(relay, model)
    await lose(reaper, model, dead)
    assert [record.id for record in await broker.deadletters()] == [dead.job_id]
    await broker.redrive(dead.job_id)
    _ = await broker.drop(dead.job_id)
    other = await claim(relay, model)
    with pytest.raises(ClaimLost):  # one of our claims is current; the script ran all the same
        _ = await broker.complete_foreign(other.job_id, Status.COMPLETED)
    while await broker.purge():
        pass
    assert await asyncio.wait_for(completions, 5)
    events = await broker.events("one", wait_seconds=0.1)
    assert events
    await broker.acknowledge([event.entry for event in events])
    async with queue_like(gateway) as another:  # the group is there already
        _ = await another.broker(model, CONFIGS[model]).events("two")


@asynccontextmanager
async def queue_like(queue: RedisQueue) -> AsyncGenerator[RedisQueue]:
    another = RedisQueue(queue._common, name="another")
    try:
        yield another
    finally:
        await another.aclose()


async def lose(reaper: RedisQueue, model: str, held: Claim) -> None:
    """Nobody renews the claim, and its first death is one too many: the job becomes a dead letter."""
    common = reaper._common
    strict = RedisQueue(
        CommonSettings(
            redis_url=common.redis_url,
            redis_username=common.redis_username,
            redis_password=common.redis_password,
            max_reap_attempts=0,
        ),
        name="strict",
    )
    broker = strict.broker(model, CONFIGS[model])

    async def dead() -> bool:
        _ = await broker.reap(first_seen_grace_ms=0)
        return (await broker.get(held.job_id)).status == Status.FAILED

    try:
        _ = await eventually(dead)
    finally:
        await strict.aclose()


async def work_as_relay(gateway: RedisQueue, relay: RedisQueue, _reaper: RedisQueue, model: str) -> None:
    broker = relay.broker(model, CONFIGS[model], GATE)
    ids = await submit(gateway, model, 8)
    waiting = asyncio.ensure_future(
        relay.broker(model, CONFIGS[model], GATE).claim(WORKER, new_claim_id(), wait_seconds=5)
    )
    held = await waiting
    assert held is not None
    assert held.job_id == ids[0]
    async with listening(relay) as client:
        _ = await broker.renew(held, client)
    await broker.report(held, Progress(1, "a line"))
    assert await gateway.broker(model, CONFIGS[model]).progress(held.record) == Progress(1, "a line")
    _ = await broker.complete(held, Result("key", 1, "text/plain", "0" * 64, tokens=7))
    back = await claim(relay, model)
    later = await claim(relay, model)
    _ = await broker.release(later)
    _ = await broker.release(back)  # in front of the later one: its place in the list is searched for
    assert (await broker.get(back.job_id)).status == "pending"
    _ = await broker.fail(await claim(relay, model), Failure("inference_error", "retry", retry_in_ms=1_000))
    fatal = Failure("inference_error", "breaker", infrastructure=True, breaker=Breaker(failures=1, cooldown_ms=1_000))
    _ = await broker.fail(await claim(relay, model), fatal)  # pauses the queue
    _ = await broker.counts()
    assert await broker.claim(WORKER, new_claim_id(), wait_seconds=0.05) is None
    idle = relay.broker(model, CONFIGS[model], GATE)
    blocked = asyncio.ensure_future(idle.claim(WORKER, new_claim_id(), wait_seconds=None))
    await idle.interrupt()
    assert await asyncio.wait_for(blocked, 5) is None


async def work_as_reaper(gateway: RedisQueue, relay: RedisQueue, reaper: RedisQueue, model: str) -> None:
    broker = reaper.broker(model, CONFIGS[model])
    await reaper.server.ping()
    _ = await reaper.server.facts()
    async with listening(reaper) as client:
        assert await reaper.server.living_clients([client]) == {client}
    _ = await reaper.server.first_seen(["object"])
    await reaper.server.forget(["object"])
    ids = await submit(gateway, model, 6)
    dead = await claim(relay, model)
    _ = await relay.broker(model, CONFIGS[model], GATE).renew(dead, client)
    (owned,) = await broker.owners()
    assert (await broker.reap_dead(owned, "killed")).outcome == "requeued"
    over = await claim(relay, model, execution_ms=1)

    async def revoked() -> bool:
        return over.job_id in await broker.revoke(grace_ms=0)

    _ = await eventually(revoked)
    lapsed = await claim(relay, model)
    await lose(reaper, model, lapsed)
    _ = await relay.broker(model, CONFIGS[model], GATE).fail(
        await claim(relay, model), Failure("inference_error", "m", retry_in_ms=1)
    )
    _ = await eventually(broker.promote)
    _ = await submit(gateway, model, deadline=await reaper.server.now_ms() - 1)
    assert await broker.expire()
    _ = await broker.reap()
    _ = await broker.sweep()
    _ = await broker.reconcile(grace_ms=0)
    _ = await broker.counts()
    _ = await reaper.server.records(ids)


WORK: Final = {"gateway": work_as_gateway, "relay": work_as_relay, "reaper": work_as_reaper}


@asynccontextmanager
async def three(server: ValkeyProcess) -> AsyncGenerator[tuple[RedisQueue, RedisQueue, RedisQueue]]:
    async with (
        queue_of(server, "gateway") as gateway,
        queue_of(server, "relay") as relay,
        queue_of(server, "reaper") as reaper,
    ):
        yield gateway, relay, reaper


@pytest.mark.parametrize("model", CONFIGS)
@pytest.mark.parametrize("user", WORK)
async def test_each_user_can_do_its_whole_work(server: ValkeyProcess, operator: Link, user: str, model: str) -> None:
    async with three(server) as queues:
        await WORK[user](*queues, model)

    log = await operator.call("ACL", "LOG")
    assert log == [], [dict(zip(one[::2], one[1::2], strict=True)) for one in log]


def granted(acl_file: Path, user: str) -> set[str]:
    (line,) = [line for line in acl_file.read_text("utf-8").splitlines() if line.startswith(f"user {user} ")]
    return set(re.findall(r" \+(\S+)", line))


def called_by_scripts(service: str) -> set[str]:
    """Commands in the scripts of the verbs that the service's source calls."""
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "services" / service / "src").rglob("*.py"))
    used = [verb for verb in verbs() if re.search(rf"broker\.{verb}(_dead|_foreign)?\(", text)]
    assert used, f"no verb found in the source of {service}"
    sources = [load(verb, transport).source for verb in used for transport in TRANSPORTS]
    return {command.lower() for source in sources for command in re.findall(r'redis\.p?call\("(\w+)"', source)}


@pytest.mark.parametrize("user", WORK)
async def test_no_user_has_a_command_that_its_work_does_not_need(
    server: ValkeyProcess, operator: Link, acl_file: Path, user: str
) -> None:
    async with three(server) as queues:
        for model in CONFIGS:
            await WORK[user](*queues, model)

    stats = await operator.call("INFO", "commandstats")
    seen = set(re.findall(r"^cmdstat_([^:]+):", stats, re.MULTILINE))
    handshake = {"client|setname", "client|setinfo"}
    assert granted(acl_file, user) - called_by_scripts(user) - seen - handshake == set()


FOREIGN_TO_ALL: Final = [
    "FLUSHALL",
    "FLUSHDB",
    "KEYS *",
    "CONFIG SET maxmemory 1",
    "CONFIG REWRITE",
    "ACL LIST",
    "ACL SETUSER x on nopass +@all",
    "SHUTDOWN NOSAVE",
    "MONITOR",
    "CLIENT KILL TYPE normal",
    "SCRIPT FLUSH",
    "FUNCTION LIST",
    "SAVE",
    "REPLICAOF NO ONE",
    "GET somebody-elses",
    "SET somebody-elses 1",
    "HGETALL wallet:x",
    "PUBLISH somewhere hello",
    "SUBSCRIBE somewhere",
    "EVAL return(redis.call('GET','somebody-elses')) 0",
    "EVAL return(redis.call('FLUSHALL')) 0",
]
FOREIGN: Final = {
    "gateway": ["BLMOVE relay:m:pending relay:m:processing LEFT RIGHT 0.01", "CLIENT LIST", "CLIENT UNBLOCK 1"],
    "relay": [
        "SCAN 0",
        "CONFIG GET maxmemory",
        "CLIENT LIST",
        "XAUTOCLAIM relay:m:outbox gateway c 0 0",
        "HGETALL idem:t:r:k",
        "LRANGE relay:m:pending 0 -1",
    ],
    "reaper": [
        "SCAN 0",
        "BLMOVE relay:m:pending relay:m:processing LEFT RIGHT 0.01",
        "CLIENT UNBLOCK 1",
        "HGETALL idem:t:r:k",
        "XAUTOCLAIM relay:m:outbox gateway c 0 0",
    ],
    "default": ["HGETALL job:x", "INFO", "EVAL return(1) 0", "LLEN relay:m:pending"],
}


@pytest.mark.parametrize("user", FOREIGN)
async def test_each_user_is_refused_everything_else(server: ValkeyProcess, user: str) -> None:
    link = Link(settings(server, "" if user == "default" else user), name="intruder")
    try:
        for command in FOREIGN_TO_ALL + FOREIGN[user]:
            with pytest.raises((BrokerUnavailable, ResponseError), match=r"(?i)no permissions|ACL failure"):
                pytest.fail(f"{user} may run {command}: {await link.call(*command.split(' '))}")
    finally:
        await link.aclose()


async def test_a_wrong_password_opens_nothing(server: ValkeyProcess) -> None:
    common = CommonSettings(
        redis_url=Secret(server.url), redis_username="gateway", redis_password=Secret(PASSWORDS["relay"])
    )
    link = Link(common, name="intruder")
    try:
        with pytest.raises(BrokerUnavailable, match=r"(?i)invalid username-password"):
            await link.call("HGETALL", "job:x")
    finally:
        await link.aclose()
