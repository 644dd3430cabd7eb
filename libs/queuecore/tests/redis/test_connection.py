"""Three outcomes on a real server: done, did not run, unknown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from queuecore.broker import NewJob, QueueLimits, Result, Worker
from queuecore.errors import BrokerUnavailable, OutcomeUnknown
from queuecore.names import new_job_id
from queuecore.redis import RedisQueue
from queuecore.redis.client import Link, PermissionMissing
from queuecore.redis.list_transport import ListBroker
from queuecore.redis.server import RedisServer
from queuecore.redis.signals import RedisSignals
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import eventually
from queuecore.testing.proxy import SwallowingProxy
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
DATA = Path(__file__).parents[1] / "data/json"
WORKER = Worker("w")


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as server:
        yield server


@pytest.fixture
async def link(valkey: ValkeyProcess) -> AsyncIterator[Link]:
    made = Link(CommonSettings(redis_url=Secret(valkey.url)), name="test")
    _ = await made.call("FLUSHALL")
    yield made
    await made.aclose()


def broker(link: Link) -> ListBroker:
    return ListBroker(link, "m", QueueLimits())


@requirement("unknown:any:link-errors-told-apart")
async def test_nobody_listening_is_unavailable_and_a_swallowed_reply_is_unknown(valkey: ValkeyProcess) -> None:
    nobody = Link(CommonSettings(redis_url=Secret("redis://127.0.0.1:1/0")), name="test")
    with pytest.raises(BrokerUnavailable):
        await RedisServer(nobody).ping()
    await nobody.aclose()

    async with SwallowingProxy(valkey.port) as proxy:
        link = Link(CommonSettings(redis_url=Secret(f"redis://127.0.0.1:{proxy.port}/0")), name="test")
        queue = broker(link)
        job_id = new_job_id()
        proxy.swallow("EVALSHA", "EVAL")
        with pytest.raises(OutcomeUnknown):
            _ = await queue.submit(NewJob(id=job_id, fields={}))
        again = await queue.submit(NewJob(id=job_id, fields={}))
        assert (await queue.counts()).pending == 1
        assert again.status == "pending"
        await link.aclose()


@requirement("unknown:claim:repeat-gives-the-same-claim")
async def test_a_claim_whose_reply_was_lost_is_found_again_and_takes_no_second_job(
    valkey: ValkeyProcess, link: Link
) -> None:
    direct = broker(link)
    for _ in range(3):
        _ = await direct.submit(NewJob(id=new_job_id(), fields={}))
    async with SwallowingProxy(valkey.port) as proxy:
        far = Link(CommonSettings(redis_url=Secret(f"redis://127.0.0.1:{proxy.port}/0")), name="far")
        queue = broker(far)
        proxy.swallow("EVALSHA", "EVAL")
        with pytest.raises(OutcomeUnknown):
            _ = await queue.claim(WORKER, "c1", wait_seconds=1)
        claim = await queue.claim(WORKER, "c1", wait_seconds=1)
        assert claim is not None
        assert (claim.fence, claim.record.claims) == (1, 1)
        assert (await direct.counts()).processing == 1
        await queue.aclose()
        await far.aclose()


async def test_a_lost_pop_strands_one_job_that_the_reaper_brings_back(valkey: ValkeyProcess, link: Link) -> None:
    direct = broker(link)
    for _ in range(3):
        _ = await direct.submit(NewJob(id=new_job_id(), fields={}))
    async with SwallowingProxy(valkey.port) as proxy:
        far = Link(CommonSettings(redis_url=Secret(f"redis://127.0.0.1:{proxy.port}/0")), name="far")
        queue = broker(far)
        proxy.swallow("BLMOVE")
        with pytest.raises(OutcomeUnknown):
            _ = await queue.claim(WORKER, "c1", wait_seconds=1)
        assert (await direct.counts())[:2] == (2, 1)
        assert [one.outcome for one in await direct.reap(first_seen_grace_ms=0)] == ["requeued"]
        assert (await direct.counts())[:2] == (3, 0)
        await queue.aclose()
        await far.aclose()


async def test_a_wait_longer_than_the_clients_own_timeouts_is_one_command_and_ends_in_time(link: Link) -> None:
    queue = broker(link)
    _ = await link.call("CONFIG", "RESETSTAT")
    started = anyio.current_time()
    assert await queue.claim(WORKER, "c1", wait_seconds=8) is None
    assert 7.9 <= anyio.current_time() - started < 10
    stats = await link.call("INFO", "commandstats")
    assert "cmdstat_blmove:calls=1," in stats
    await queue.aclose()


async def test_cancelled_commands_never_give_their_reply_to_the_next(link: Link) -> None:
    for number in range(200):
        _ = await link.call("SET", f"k{number}", number)

    async def cut(number: int) -> None:
        with anyio.move_on_after(0.0005):
            assert await link.call("GET", f"k{number}") == str(number)

    for start in range(0, 200, 20):
        async with anyio.create_task_group() as group:
            for number in range(start, start + 20):
                group.start_soon(cut, number)
    for number in range(200):
        assert await link.call("GET", f"k{number}") == str(number)


async def test_a_closed_connection_is_noticed_before_it_is_used(link: Link) -> None:
    other = Link(link_settings(link), name="other")
    assert await link.call("PING") == "PONG"
    _ = await other.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await eventually(lambda: True)
    assert await link.call("PING") == "PONG", "no error: it was not sent on the dead connection"
    await other.aclose()


def link_settings(link: Link) -> CommonSettings:
    options = link._options
    return CommonSettings(redis_url=Secret(f"redis://{options['host']}:{options['port']}/0"))


@pytest.mark.parametrize("password", json.loads((DATA / "redis_passwords.json").read_text("utf-8")), ids=repr)
async def test_any_password_logs_in_unchanged(password: object) -> None:
    text = password["password"] if isinstance(password, dict) else str(password)
    if not text or "\x00" in text:
        pytest.skip("not a password")
    with ValkeyProcess() as server:
        plain = Link(CommonSettings(redis_url=Secret(server.url)), name="test")
        _ = await plain.call("ACL", "SETUSER", "u", "on", f">{text}", "~*", "&*", "+@all")
        named = Link(
            CommonSettings(redis_url=Secret(server.url), redis_username="u", redis_password=Secret(text)), name="t"
        )
        assert await named.call("ACL", "WHOAMI") == "u"
        wrong = Link(
            CommonSettings(redis_url=Secret(server.url), redis_username="u", redis_password=Secret(text + "x")),
            name="t",
        )
        with pytest.raises(BrokerUnavailable):
            _ = await wrong.call("PING")
        await wrong.aclose()
        await plain.aclose()
        await named.aclose()


async def test_a_full_server_refuses_and_nothing_is_half_made(link: Link) -> None:
    queue = broker(link)
    _ = await queue.submit(NewJob(id=new_job_id(), fields={}))
    _ = await queue.submit(NewJob(id=new_job_id(), fields={}))
    claim, done = await queue.claim(WORKER, "c1"), await queue.claim(WORKER, "c2")
    assert claim is not None
    assert done is not None
    _ = await link.call("CONFIG", "SET", "maxmemory", "1mb")
    try:
        job_id = new_job_id()
        with pytest.raises(BrokerUnavailable, match="maxmemory"):
            _ = await queue.submit(NewJob(id=job_id, fields={}))
        assert await link.call("EXISTS", f"job:{job_id}") == 0
        _ = await queue.renew(claim)
        assert await queue.complete(done, Result("k", 1, "t/t", "0")) == "completed"
        assert await queue.release(claim) == "pending"
    finally:
        _ = await link.call("CONFIG", "SET", "maxmemory", "0")
        await queue.aclose()


async def test_a_forbidden_command_is_named(link: Link) -> None:
    _ = await link.call("ACL", "SETUSER", "poor", "on", ">p", "~*", "&*", "+@all", "-client|list", "-client|unblock")
    poor = Link(
        link_settings(link).__class__(
            redis_url=link_settings(link).redis_url, redis_username="poor", redis_password=Secret("p")
        ),
        name="t",
    )
    with pytest.raises(PermissionMissing, match="CLIENT"):
        _ = await poor.call("CLIENT", "LIST")
    assert await RedisServer(poor).living_clients(["x:1"]) in {None, frozenset()}
    queue = broker(poor)
    async with anyio.create_task_group() as group:
        group.start_soon(queue.claim, WORKER, "c1")
        with anyio.fail_after(3):
            await queue.interrupt()
            assert await queue.claim(WORKER, "c2", wait_seconds=None) is None
    await queue.aclose()
    await poor.aclose()


async def test_interrupting_a_wait_in_the_instant_a_job_arrives_loses_nothing(link: Link) -> None:
    direct = broker(link)
    outcomes: set[str] = set()
    for _ in range(200):
        queue = broker(link)
        job_id = new_job_id()
        taken: list[object] = []

        async def wait(queue: ListBroker = queue, taken: list[object] = taken) -> None:
            taken.append(await queue.claim(WORKER, "c", wait_seconds=None))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            _ = await eventually(lambda queue=queue: queue._popping)
            async with anyio.create_task_group() as race:
                race.start_soon(queue.interrupt)
                race.start_soon(direct.submit, NewJob(id=job_id, fields={}))
        counts = await direct.counts()
        outcomes.add("claimed" if taken[0] else "pending")
        assert counts[:2] == ((0, 1) if taken[0] else (1, 0))
        if taken[0] is None:
            assert (await direct.get(job_id)).claims == 0
        _ = await link.call("FLUSHALL")
        await queue.aclose()
    assert "pending" in outcomes


async def test_wake_ups_survive_a_cut_connection_and_report_the_new_one(link: Link) -> None:
    signals = RedisSignals(link)
    connections: list[str] = []
    heard: list[str] = []

    async def listen() -> None:
        async for job_id in signals.cancels("m", connections.append):
            heard.append(job_id)

    queue = broker(link)
    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        _ = await eventually(lambda: len(connections) == 1)
        assert await RedisServer(link).living_clients([*connections, "other-run:1"]) == frozenset(connections)
        _ = await link.call("CLIENT", "KILL", "ID", connections[0].rpartition(":")[2])
        _ = await eventually(lambda: len(connections) == 2)
        assert connections[0] != connections[1]
        assert await RedisServer(link).living_clients(connections) == frozenset(connections[1:])
        job_id = new_job_id()
        _ = await queue.submit(NewJob(id=job_id, fields={}))
        _ = await queue.claim(WORKER, "c1")
        _ = await queue.cancel(job_id)
        _ = await eventually(lambda: heard == [job_id])
        group.cancel_scope.cancel()


async def test_a_half_open_subscription_is_noticed(valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuecore.redis.signals.PING_EVERY_SECONDS", 0.1)
    monkeypatch.setattr("queuecore.redis.signals.PONG_WITHIN_SECONDS", 0.1)
    async with SwallowingProxy(valkey.port) as proxy:
        far = Link(CommonSettings(redis_url=Secret(f"redis://127.0.0.1:{proxy.port}/0")), name="far")
        wakes: list[str] = []

        async def listen() -> None:
            async for job_id in RedisSignals(far).changes():
                wakes.append(job_id)

        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            _ = await eventually(lambda: wakes == [""])
            proxy.freeze()
            _ = await eventually(lambda: proxy.accepted > 1)
            proxy.thaw()
            _ = await eventually(lambda: wakes.count("") >= 2)
            group.cancel_scope.cancel()
        await far.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio", ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
async def test_connections_that_were_reset_while_they_were_idle_are_opened_anew(valkey: ValkeyProcess) -> None:
    async with SwallowingProxy(valkey.port) as proxy:
        far = Link(CommonSettings(redis_url=Secret(f"redis://127.0.0.1:{proxy.port}/0")), name="far")
        queue = broker(far)
        await RedisServer(far).ping()
        assert await queue.claim(WORKER, "c1", wait_seconds=0.01) is None  # this one has a connection of its own
        writers = [one._writer for one in (*far._idle, queue._popper) if one and one._writer]
        assert await proxy.reset() == len(writers) == 2
        _ = await eventually(lambda: all(writer.is_closing() for writer in writers))
        await RedisServer(far).ping()
        with pytest.raises((BrokerUnavailable, OutcomeUnknown)):
            _ = await queue.claim(WORKER, "c2", wait_seconds=0.01)
        assert await queue.claim(WORKER, "c2", wait_seconds=0.01) is None
        await queue.aclose()
        await far.aclose()


async def test_records_that_nobody_could_have_written_stop_no_loop(link: Link) -> None:
    queue = broker(link)
    rows = [
        json.loads(line) if _is_json(line) else {"raw": line}
        for line in (DATA / "job_records.jsonl").read_text("utf-8").splitlines()
    ]
    for number, row in enumerate(rows):
        fields = row.get("record")
        flat = (
            [str(part) for pair in fields.items() for part in pair]
            if isinstance(fields, dict)
            else ["status", str(row.get("raw"))]
        )
        _ = await link.call("HSET", f"job:d{number}", *flat)
        _ = await link.call("RPUSH", queue.keys.pending, f"d{number}")
        _ = await link.call("ZADD", queue.keys.jobs, number, f"d{number}")
    _ = await link.call("RPUSH", queue.keys.processing, "nobody", "\udcff\udcfe")
    good = new_job_id()
    _ = await queue.submit(NewJob(id=good, fields={}))
    for _ in range(3):
        _ = await queue.reap(first_seen_grace_ms=0)
        _ = await queue.sweep()
        _ = await queue.expire()
        _ = await queue.reconcile(grace_ms=0)
        _ = await queue.revoke(grace_ms=0)
        _ = await queue.jobs()
    claimed: list[str] = []
    for number in range(len(rows) + 1):
        claim = await queue.claim(WORKER, f"c{number}")
        if claim is not None:
            claimed.append(claim.job_id)
    assert good in claimed
    assert "\udcff\udcfe" not in await link.call("LRANGE", queue.keys.processing, 0, -1)
    assert not [key for key in await link.call("KEYS", "*") if "b'" in key]


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


async def test_opening_a_queue_sends_nothing_and_an_unknown_transport_is_refused() -> None:
    queue = RedisQueue(CommonSettings(redis_url=Secret("redis://127.0.0.1:1/0")), name="t")
    await queue.aclose()
    await asyncio.sleep(0)


@requirement("unknown:any:link-errors-told-apart")
async def test_a_server_that_loads_its_data_ran_nothing() -> None:
    """A restart with a large AOF: each command is answered -LOADING, a pipeline of reads too."""

    serving: set[object] = set()

    async def loading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(writer)
        while command := await reader.read(65536):
            for one in command.split(b"\r\n$")[1:]:  # the first bulk string of each command is its name
                name = one.partition(b"\r\n")[2].split(b"\r\n")[0]
                if name in {b"CLIENT", b"SELECT"}:
                    writer.write(b"+OK\r\n")
                elif name in {b"GET", b"ZCARD"}:
                    writer.write(b"-LOADING Valkey is loading the dataset in memory\r\n")
        writer.close()
        await writer.wait_closed()
        serving.remove(writer)

    async with await asyncio.start_server(loading, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        link = Link(CommonSettings(redis_url=Secret(f"redis://127.0.0.1:{port}/0")), name="test", protocol=2)
        with pytest.raises(BrokerUnavailable, match="loading"):
            _ = await link.call("GET", "k")
        with pytest.raises(BrokerUnavailable, match="loading"):
            _ = await link.pipeline([("GET", "k"), ("ZCARD", "z")])
        await link.aclose()
        _ = await eventually(lambda: not serving)
