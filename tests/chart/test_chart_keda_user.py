"""KEDA's Redis user of docs/install.md: it can count every kind of queue, in KEDA's own words, and do nothing else."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

from chart.rendering import ROOT
from queuecore.testing.servers import ValkeyProcess

pytestmark = pytest.mark.redis

# What KEDA's scaler "redis" sends for a list, a sorted set, a set or a hash.
COUNT = """
local listName = KEYS[1]
local listType = redis.call('type', listName).ok
if listType == 'zset' then return redis.call('zcard', listName)
elseif listType == 'set' then return redis.call('scard', listName)
elseif listType == 'hash' then return redis.call('hlen', listName)
elseif listType == 'list' or listType == 'none' then return redis.call('llen', listName)
else return redis.error_reply('ERR unsupported key type: ' .. listType) end
"""


@pytest.fixture(scope="module")
def keda(tmp_path_factory: pytest.TempPathFactory) -> Generator[Redis]:
    text = (ROOT / "docs" / "install.md").read_text("utf-8")
    (rules,) = re.findall(r"^ACL SETUSER keda on >PASSWORD (.*)$", text, re.MULTILINE)
    directory: Path = tmp_path_factory.mktemp("valkey")
    _ = (directory / "users.acl").write_text(f"user keda on >p {rules}\n", "utf-8")
    with ValkeyProcess("--aclfile", str(directory / "users.acl")) as server:
        owner = Redis(port=server.port)
        owner.rpush("relay:m:pending", "a", "b")
        owner.zadd("queue:m", {"a": 1})
        owner.zadd("queue:m:claims-idx", {"a": 1, "b": 2, "c": 3})
        owner.hset("processing:m", "a", "1")
        for _ in range(4):
            owner.xadd("relay:m:stream", {"id": "a"})
        owner.set("job:1", "secret")
        client = Redis(port=server.port, username="keda", password="p", protocol=3)
        yield client
        client.close()
        owner.close()


@pytest.mark.parametrize(
    ("key", "length"),
    [
        ("relay:m:pending", 2),
        ("relay:m:processing", 0),
        ("queue:m", 1),
        ("queue:m:claims-idx", 3),
        ("processing:m", 1),
    ],
)
def test_it_counts_lists_sorted_sets_and_hashes(keda: Redis, key: str, length: int) -> None:
    assert keda.eval(COUNT, 1, key) == length


def test_it_counts_streams_and_may_look_whether_the_server_is_there(keda: Redis) -> None:
    assert keda.ping()
    assert keda.xlen("relay:m:stream") == 4


@pytest.mark.parametrize(
    "command", ["get job:1", "llen job:1", "del relay:m:pending", "lpop relay:m:pending", "config get *", "keys *"]
)
def test_it_can_do_nothing_else(keda: Redis, command: str) -> None:
    with pytest.raises((NoPermissionError, ResponseError), match=r"permission|NOPERM"):
        keda.execute_command(*command.split())


@pytest.mark.parametrize(
    "body", ["redis.call('get', KEYS[1])", "redis.call('del', KEYS[1])", "redis.call('lpop', 'relay:m:pending')"]
)
def test_its_scripts_cannot_either(keda: Redis, body: str) -> None:
    with pytest.raises(ResponseError, match=r"ACL|permission"):
        keda.eval(body, 1, "relay:m:pending")
