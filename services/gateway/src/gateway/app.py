"""The composition root: which parts there are and how they hold together. Nothing here is on any other path."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from starlette.applications import Starlette
from starlette.types import ASGIApp

from gateway.addresses import TrustedProxies
from gateway.admin import Admin, Guard, read_token
from gateway.auth import authenticator
from gateway.console.application import AdminPort, console
from gateway.console.redrive import Redrives
from gateway.edge import Edge
from gateway.frame import Frame
from gateway.gathered import Gathered
from gateway.handlers.reference import reference
from gateway.health import Health, durability, facts_of, policy_problem
from gateway.limits import Budgets
from gateway.outbox import Outbox
from gateway.problems import HANDLERS
from gateway.rates import Rates
from gateway.reuse import Reads
from gateway.routes import ROUTES
from gateway.seed_completions import SeedCompletions
from gateway.settings import GatewaySettings
from gateway.tasks import Tasks
from gateway.waiters import Waiters
from gateway.webhooks.courier import Courier
from gateway.webhooks.deliver import Deliverer
from gateway.webhooks.guard import Allow
from gateway.webhooks.sign import Secrets
from queuecore.blobs import BlobStore
from queuecore.broker import Broker, Server, Signals
from queuecore.bucket import Buckets
from queuecore.config import Config, ModelConfig
from queuecore.errors import BrokerError, ConfigurationError, QueueFull
from queuecore.job import TERMINAL
from queuecore.notice import Notices
from queuecore.reservation import Reservations
from queuecore.response_cache import ResponseCache
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event
from queuecore.telemetry.tracing import Tracer

_log = logging.getLogger(__name__)


class Queue(Protocol):
    """What ``queuecore.redis.open_redis`` gives, and the in-memory queue of the tests."""

    @property
    def server(self) -> Server:
        """The queue's server as a whole."""
        ...

    @property
    def signals(self) -> Signals:
        """Wake-ups."""
        ...

    @property
    def reservations(self) -> Reservations:
        """Idempotency keys."""
        ...

    @property
    def buckets(self) -> Buckets:
        """Budgets of tenants."""
        ...

    @property
    def cache(self) -> ResponseCache:
        """Answers that are used again."""
        ...

    @property
    def notices(self) -> Notices:
        """Webhooks."""
        ...


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway, ready to be served."""

    public: ASGIApp
    admin: ASGIApp
    edge: Edge
    tasks: Tasks
    server: Server


def build(
    settings: GatewaySettings,
    config: Config,
    queue: Queue,
    brokers: Mapping[str, Broker],
    store: BlobStore,
    *,
    outboxes: Mapping[str, Broker],
    tracer: Tracer,
) -> Gateway:
    """Put a gateway together and start its background tasks.

    ``outboxes`` are the same queues on connections of their own: a consumer holds one while it waits, and requests
    must not stand in line behind it.

    Raises:
        ConfigurationError: what is asked for is not there.
    """
    token = read_token(settings.admin_token_file)
    proxies = TrustedProxies(settings.trusted_proxies)
    authenticate = authenticator(settings, proxies)
    allow = Allow(settings.webhook_allow)
    courier = Courier(queue.notices, queue.server, Deliverer(allow), Secrets(settings.webhook_secrets_file), tracer)
    tasks = Tasks()
    rates = {name: Rates() for name in brokers}
    waiters = Waiters(settings.max_waiters)
    health = Health(queue.server, store, tasks.ages)
    edge = Edge(
        settings=settings,
        config=config,
        brokers=brokers,
        store=store,
        waiters=waiters,
        health=health,
        authenticate=authenticate,
        proxies=proxies,
        budgets=Budgets(queue.buckets),
        reservations=queue.reservations,
        notices=queue.notices,
        allow=allow,
        rates=rates,
        tracer=tracer,
        reads=Reads(queue.cache, settings.read_cache_seconds),
        records=Gathered(queue.server, next(iter(brokers.values()))),
    )
    public = Starlette(routes=ROUTES, exception_handlers=dict(HANDLERS))
    public.router.redirect_slashes = False
    public.state.edge = edge
    public.state.reference = reference(settings, config)
    admin = Admin(edge, queue.server, queue.cache, rates).application()
    redrives = Redrives(brokers)
    _show_zeros(brokers)
    tasks.start("wake-ups", lambda beat: waiters.listen(queue.signals, beat))
    tasks.start("readiness", health.watch)
    tasks.start("webhooks", courier.work)
    tasks.start("redrives", redrives.work)
    consumer = f"{socket.gethostname()}:{settings.port or os.getpid()}"
    for name, broker in outboxes.items():
        outbox = Outbox(broker, queue.server, consumer, rates[name], plan=courier.plan)
        tasks.start(f"outbox {name}", outbox.consume)
        if settings.accept_seed_completions:
            seed = SeedCompletions(brokers[name], store)
            tasks.start(f"seed completions {name}", lambda beat, seed=seed: seed.consume(queue.signals, beat))
    return Gateway(
        public=Frame(public),
        admin=AdminPort(console(edge, queue.server, token, redrives), Guard(admin, token)),
        edge=edge,
        tasks=tasks,
        server=queue.server,
    )


def _show_zeros(models: Iterable[str]) -> None:
    # A counter that appears with its first event has no increase to alert on.
    for outcome in TERMINAL:
        for model in models:
            _ = metrics.JOBS_FINISHED.labels(model, str(outcome))
    _ = metrics.SUBMISSIONS_REFUSED.labels(QueueFull.code)


async def check_server(server: Server) -> None:
    """Refuse a Redis that would throw jobs away. One that does not answer yet is waited for by readiness.

    Raises:
        ConfigurationError
    """
    try:
        facts = await facts_of(server)
    except BrokerError as error:
        _log.warning("Redis does not answer yet: %s", error, extra={"event": Event.CONNECTION_LOST})
        return
    if wrong := policy_problem(facts):
        raise ConfigurationError(f"REDIS_URL: {wrong}")
    level = logging.WARNING if facts.appendonly is False else logging.INFO
    _log.log(level, "durability: %s", durability(facts), extra={"event": Event.SERVER_CHECKED})
    if not facts.maxmemory_policy:
        _log.warning(
            "Redis does not tell its maxmemory-policy: see to it that it is noeviction",
            extra={"event": Event.SERVER_CHECKED},
        )


def brokers_of(config: Config, make: Makes) -> dict[str, Broker]:
    """A broker for each model."""
    return {name: make(name, model) for name, model in config.models.items()}


class Makes(Protocol):
    """``RedisQueue.broker``."""

    def __call__(self, model: str, config: ModelConfig, /) -> Broker:
        """The broker of one model's queue."""
        ...
