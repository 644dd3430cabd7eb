"""The queue on Redis or Valkey: ``open_redis`` gives one process's access to it."""

from __future__ import annotations

from queuecore.broker import Broker
from queuecore.config import ModelConfig, queue_limits
from queuecore.errors import ConfigurationError
from queuecore.redis.client import Link
from queuecore.redis.list_transport import ListBroker
from queuecore.redis.server import RedisServer
from queuecore.redis.signals import RedisSignals
from queuecore.settings import CommonSettings


class RedisQueue:
    """A process's connections and what they give: the server's facts, the wake-ups, a broker for each model."""

    def __init__(self, common: CommonSettings, *, name: str, protocol: int = 2) -> None:
        self._common = common
        self._link = Link(common, name=name, protocol=protocol)
        self._brokers: list[ListBroker] = []
        self.server = RedisServer(self._link)
        self.signals = RedisSignals(self._link)

    def broker(self, model: str, config: ModelConfig) -> Broker:
        """The queue of one model.

        Raises:
            ConfigurationError: this release has no such transport.
        """
        if config.transport != "list":
            raise ConfigurationError(f"models.{model}.transport: {config.transport} is not available in this release")
        broker = ListBroker(self._link, model, queue_limits(config, self._common))
        self._brokers.append(broker)
        return broker

    async def aclose(self) -> None:
        """Close every connection."""
        for broker in self._brokers:
            await broker.aclose()
        await self._link.aclose()


async def open_redis(common: CommonSettings, *, name: str) -> RedisQueue:
    """Connections are made on first use; nothing is sent here."""
    return RedisQueue(common, name=name)
