"""The queue on Redis or Valkey: ``open_redis`` gives one process's access to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from queuecore.broker import Broker
from queuecore.config import Config, ModelConfig, Transport, queue_limits
from queuecore.errors import ConfigurationError
from queuecore.gates import Gate
from queuecore.redis import unobserved  # noqa: F401  # pyright: ignore[reportUnusedImport]  first: see there
from queuecore.redis.broker import RedisBroker
from queuecore.redis.buckets import RedisBuckets
from queuecore.redis.change import remembered
from queuecore.redis.client import Link
from queuecore.redis.list_transport import ListBroker
from queuecore.redis.notices import RedisNotices
from queuecore.redis.reservations import RedisReservations
from queuecore.redis.response_cache import RedisResponseCache
from queuecore.redis.server import RedisServer
from queuecore.redis.signals import RedisSignals
from queuecore.redis.sortedset_transport import SortedSetBroker
from queuecore.redis.stage_transport import StageBroker
from queuecore.redis.stream_transport import StreamBroker
from queuecore.settings import CommonSettings, Secret

TRANSPORTS: Final[Mapping[Transport, type[RedisBroker]]] = {
    "list": ListBroker,
    "sortedset": SortedSetBroker,
    "stream": StreamBroker,
    "stage": StageBroker,
}


class RedisQueue:
    """A process's connections and what they give: the server's facts, the wake-ups, a broker for each model."""

    def __init__(self, common: CommonSettings, *, name: str, protocol: int = 2) -> None:
        self._common = common
        self._link = Link(common, name=name, protocol=protocol)
        self._cache_link = self._link
        if common.cache_redis_url:
            self._cache_link = Link(_of_cache(common), name=name, protocol=protocol)
        self._brokers: list[RedisBroker] = []
        self.server = RedisServer(self._link)
        self.signals = RedisSignals(self._link)
        self.reservations = RedisReservations(self._link)
        self.notices = RedisNotices(self._link)
        self.buckets = RedisBuckets(self._link)
        self.cache = RedisResponseCache(self._link, self._cache_link)

    def broker(self, model: str, config: ModelConfig, gate: Gate | None = None) -> Broker:
        """The queue of one model. Who claims has to bring its ``gate``; nobody else needs it.

        Raises:
            ConfigurationError: this release has no such transport, or its settings contradict each other.
        """
        kind = TRANSPORTS.get(config.transport)
        if kind is None:
            raise ConfigurationError(f"models.{model}.transport: {config.transport} is not available in this release")
        try:
            limits = queue_limits(config, self._common)
        except ConfigurationError as error:
            raise ConfigurationError(f"models.{model}.{error}") from error
        broker = kind(self._link, model, limits._replace(gate=gate))
        self._brokers.append(broker)
        return broker

    async def forgotten(self, config: Config) -> list[Broker]:
        """Queues with jobs left whose model is not in the configuration any more: somebody has to end their claims."""
        found: list[Broker] = []
        for model, transport in (await remembered(self._link)).items():
            if model not in config.models and transport in TRANSPORTS:
                kind = cast("Transport", transport)
                broker = self.broker(model, ModelConfig(service_type="-", operations={"-": "/"}, transport=kind))
                counts = await broker.counts()
                if counts.pending + counts.processing + counts.delayed + counts.paused + counts.ordered:
                    found.append(broker)
        return found

    async def aclose(self) -> None:
        """Close every connection."""
        for broker in self._brokers:
            await broker.aclose()
        for link in {self._link, self._cache_link}:
            await link.aclose()


def _of_cache(common: CommonSettings) -> CommonSettings:
    """The same settings for the cache's own server: whose user and password its URL gives."""
    return msgspec.structs.replace(
        common, redis_url=common.cache_redis_url, redis_username="", redis_password=Secret("")
    )


async def open_redis(common: CommonSettings, *, name: str) -> RedisQueue:
    """Connections are made on first use; nothing is sent here."""
    return RedisQueue(common, name=name)
