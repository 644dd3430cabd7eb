"""The Redis server as a whole: facts, open connections, and the register of first sights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from redis.exceptions import ResponseError

from queuecore.broker import Server, ServerFacts
from queuecore.errors import BrokerUnavailable
from queuecore.job import JobRecord
from queuecore.redis.client import Link, PermissionMissing
from queuecore.redis.records import fields_of, read_records, server_ms

FIRST_SEEN: Final = "relayq:first-seen"


class RedisServer(Server):
    """Facts of the server behind a link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def ping(self) -> None:
        _ = await self._link.call("PING", reply_seconds=5)

    async def now_ms(self) -> int:
        return await server_ms(self._link)

    async def facts(self) -> ServerFacts:
        info = parse_info(await self._link.call("INFO"))
        policy, fsync = info.get("maxmemory_policy", ""), ""
        append: bool | None = info["aof_enabled"] == "1" if "aof_enabled" in info else None
        try:
            config = fields_of(await self._link.call("CONFIG", "GET", "maxmemory-policy", "appendfsync"))
            policy, fsync = config.get("maxmemory-policy", policy), config.get("appendfsync", "")
        except (PermissionMissing, ResponseError):
            pass  # some managed servers forbid CONFIG: INFO has to do
        return ServerFacts(
            info.get("run_id", ""),
            info.get("valkey_version") or info.get("redis_version", ""),
            policy,
            append,
            fsync,
            int(info.get("used_memory", "0")),
            int(info.get("maxmemory", "0")),
        )

    async def living_clients(self, clients: Sequence[str]) -> frozenset[str] | None:
        if not clients:
            return frozenset()
        try:
            run_id = parse_info(await self._link.call("INFO", "server")).get("run_id", "")
            ids = [client.rpartition(":")[2] for client in clients if client.startswith(f"{run_id}:")]
            text: str = await self._link.call("CLIENT", "LIST", "ID", *ids) if ids else ""
        except (PermissionMissing, ResponseError):
            return None
        return frozenset(
            f"{run_id}:{word[3:]}"
            for line in text.splitlines()
            for word in line.split(" ")[:1]
            if word.startswith("id=")
        )

    async def first_seen(self, keys: Sequence[str]) -> Mapping[str, int]:
        if not keys:
            return {}
        now = await server_ms(self._link)
        await self._checked([("ZADD", FIRST_SEEN, "NX", now, key) for key in keys])
        scores = await self._link.call("ZMSCORE", FIRST_SEEN, *keys)
        return {key: max(0, now - int(float(score or now))) for key, score in zip(keys, scores, strict=True)}

    async def forget(self, keys: Sequence[str]) -> None:
        if keys:
            _ = await self._link.call("ZREM", FIRST_SEEN, *keys)

    async def records(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        return await read_records(self._link, job_ids)

    async def _checked(self, commands: Sequence[Sequence[str | int | float]]) -> None:
        for reply in await self._link.pipeline(commands):
            if isinstance(reply, ResponseError):
                raise BrokerUnavailable(f"Redis: {reply}")


def parse_info(text: str) -> dict[str, str]:
    """INFO's ``name:value`` lines."""
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}
