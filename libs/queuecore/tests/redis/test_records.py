"""``Server.records``: None means that a record is gone, for objects are deleted on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from queuecore.broker import NewJob
from queuecore.config import ModelConfig
from queuecore.errors import BrokerUnavailable
from queuecore.redis import RedisQueue
from queuecore.settings import CommonSettings, Secret
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as valkey:
        yield valkey


@pytest.fixture
async def queue(server: ValkeyProcess) -> AsyncIterator[RedisQueue]:
    made = RedisQueue(CommonSettings(redis_url=Secret(server.url)), name="test")
    yield made
    await made.aclose()


async def test_a_record_that_is_gone_is_told_from_a_damaged_one(queue: RedisQueue) -> None:
    broker = queue.broker("m", ModelConfig(service_type="test", operations={"run": "/run"}))
    _ = await broker.submit(NewJob(id="there", fields={}))
    _ = await queue.server._link.call("SET", "job:damaged", "not a hash")
    records = await queue.server.records(["there", "damaged", "gone"])

    assert records["gone"] is None
    assert records["there"] is not None
    assert records["damaged"] is not None


async def test_a_user_who_may_not_read_records_learns_nothing_about_them(
    queue: RedisQueue, server: ValkeyProcess
) -> None:
    _ = await queue.server._link.call("ACL", "SETUSER", "blind", "on", ">word", "~*", "&*", "+@all", "-hgetall")
    common = CommonSettings(redis_url=Secret(server.url), redis_username="blind", redis_password=Secret("word"))
    blind = RedisQueue(common, name="blind")

    with pytest.raises(BrokerUnavailable, match="HGETALL"):
        _ = await blind.server.records(["there"])
    await blind.aclose()
