"""Idempotency keys: the same for the specification and for Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from queuecore.broker import Broker, NewJob, QueueLimits
from queuecore.config import ModelConfig
from queuecore.errors import ReservationLost
from queuecore.job import Status
from queuecore.redis import RedisQueue, keys
from queuecore.reservation import Answered, Held, Reservation, Reservations, Reserved, Scope
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.clock import eventually
from queuecore.testing.memory import MemoryQueue
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
SCOPE = Scope("tenant", "jobs/echo", "k")
MODEL = ModelConfig(service_type="test", operations={"run": "/run"})


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as valkey:
        yield valkey


@pytest.fixture
async def redis(server: ValkeyProcess) -> AsyncIterator[RedisQueue]:
    made = RedisQueue(CommonSettings(redis_url=Secret(server.url)), name="test")
    _ = await made.server._link.call("FLUSHALL")
    yield made
    await made.aclose()


@pytest.fixture(params=["memory", "redis"])
def both(request: pytest.FixtureRequest) -> tuple[Reservations, Broker]:
    if request.param == "memory":
        queue = MemoryQueue()
        return queue.reservations, queue.broker("m", QueueLimits())
    made: RedisQueue = request.getfixturevalue("redis")
    return made.reservations, made.broker("m", MODEL)


def job(name: str, token: str, fingerprint: str = "f") -> NewJob:
    return NewJob(id=name, fields={}, reservation=Reservation(SCOPE, token, fingerprint))


@requirement("submit:submit:one-step")
async def test_key_is_one_requests_until_its_job_answers_it(both: tuple[Reservations, Broker]) -> None:
    reservations, broker = both
    assert await reservations.reserve(SCOPE, "one") == Reserved()
    assert await reservations.reserve(SCOPE, "one") == Reserved()
    assert await reservations.reserve(SCOPE, "two") == Held()
    assert await reservations.reserve(Scope("other", "jobs/echo", "k"), "two") == Reserved()

    assert (await broker.submit(job("j1", "one"))).created
    assert not (await broker.submit(job("j1", "one"))).created  # a repeat
    assert await reservations.reserve(SCOPE, "one") == Answered("j1", "f")
    assert await reservations.reserve(SCOPE, "two") == Answered("j1", "f")
    await reservations.free(SCOPE, "one")
    assert await reservations.reserve(SCOPE, "two") == Answered("j1", "f")


async def test_submit_without_the_key_changes_nothing(both: tuple[Reservations, Broker]) -> None:
    reservations, broker = both
    _ = await reservations.reserve(SCOPE, "two")
    with pytest.raises(ReservationLost):
        _ = await broker.submit(job("j1", "one"))
    assert (await broker.counts()).pending == 0

    _ = await broker.submit(job("j2", "two"))
    with pytest.raises(ReservationLost):
        _ = await broker.submit(job("j1", "one"))
    assert (await broker.counts()).pending == 1


async def test_reservation_that_ended_untaken_still_serves(both: tuple[Reservations, Broker]) -> None:
    reservations, broker = both
    _ = await reservations.reserve(SCOPE, "one")
    await reservations.free(SCOPE, "two")
    assert await reservations.reserve(SCOPE, "two") == Held()
    await reservations.free(SCOPE, "one")

    assert (await broker.submit(job("j1", "one"))).created


@requirement("idempotency:any:lives-with-the-record")
async def test_answer_ends_when_its_record_does_and_redrive_keeps_both(redis: RedisQueue) -> None:
    link, broker = redis.server._link, redis.broker("m", MODEL)
    name = keys.idempotency(SCOPE)
    _ = await redis.reservations.reserve(SCOPE, "one", life_ms=5_000)
    assert 0 < await link.call("PTTL", name) <= 5_000
    _ = await broker.submit(job("j1", "one"))
    assert await link.call("PTTL", name) == -1
    assert (await broker.cancel("j1")).status is Status.CANCELLED
    assert abs(await link.call("PTTL", name) - await link.call("PTTL", "job:j1")) < 1_000

    _ = await link.call("HSET", "job:j1", "status", "failed")
    _ = await link.call("RPUSH", "relay:m:deadletter", "j1")
    await broker.redrive("j1")
    assert await link.call("PTTL", name) == -1

    _ = await link.call("DEL", "job:j1")  # a person with redis-cli
    assert await redis.reservations.reserve(SCOPE, "two") == Reserved()


@requirement("idempotency:kill:freed-within-15-s")
async def test_reservation_nobody_renews_ends(redis: RedisQueue) -> None:
    _ = await redis.reservations.reserve(SCOPE, "one", life_ms=50)

    async def free() -> bool:
        return await redis.reservations.reserve(SCOPE, "two") == Reserved()

    assert await eventually(free)


def test_no_two_scopes_share_a_name() -> None:
    scopes = [
        Scope("a", "b", "c"),
        Scope("a:b", "c", ""),
        Scope("a", "b:c", ""),
        Scope("a%3Ab", "c", ""),
        Scope("", "a", "b:c"),
    ]

    assert len({keys.idempotency(scope) for scope in scopes}) == len(scopes)
