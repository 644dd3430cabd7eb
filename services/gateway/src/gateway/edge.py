"""What the handlers work with: interfaces only. ``app.py`` puts them together; no handler ever sees an adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from gateway.addresses import TrustedProxies
from gateway.auth import Authenticator
from gateway.documents import collection, place_of
from gateway.gathered import Gathered
from gateway.health import Health
from gateway.keyfile import Caller, Right
from gateway.limits import Budgets
from gateway.problems import Refusal
from gateway.rates import Rates
from gateway.reuse import Reads
from gateway.settings import GatewaySettings
from gateway.waiters import Waiters
from gateway.webhooks.guard import Allow
from queuecore.blobs import BlobStore
from queuecore.broker import Broker
from queuecore.config import Config
from queuecore.errors import JobExpired, JobNotFound
from queuecore.job import JobRecord
from queuecore.names import is_job_id
from queuecore.notice import Notices
from queuecore.reservation import Reservations
from queuecore.telemetry.tracing import Tracer


@dataclass(frozen=True, slots=True)
class Edge:
    """One gateway's parts."""

    settings: GatewaySettings
    config: Config
    brokers: Mapping[str, Broker]
    store: BlobStore
    waiters: Waiters
    health: Health
    authenticate: Authenticator
    proxies: TrustedProxies
    budgets: Budgets
    reservations: Reservations
    notices: Notices
    allow: Allow
    rates: Mapping[str, Rates]
    tracer: Tracer
    reads: Reads
    records: Gathered

    async def caller(self, request: Request, right: Right) -> Caller:
        """Who calls, if they may do this and have requests left.

        Raises:
            Refusal: 401, 403 or 429.
        """
        try:
            caller = self.authenticate(request)
        except Refusal as refusal:
            if refusal.status == 401 and self.settings.auth == "api-key":  # noqa: PLR2004  nobody's key
                await self.budgets.failed_key(self.proxies.address(request))
            raise
        if right not in caller.rights:
            raise Refusal(403, "forbidden", f"this key may not {right}; it may: {', '.join(sorted(caller.rights))}")
        await self.budgets.request(request, caller)
        return caller

    async def find(self, tenant: str, place: str, job_id: str) -> JobRecord:
        """The tenant's job in this collection, ``jobs/<service_type>`` or ``pipelines/<name>``.

        Raises:
            JobNotFound: there is none, or it is another tenant's: nobody learns which.
            JobExpired: its retention is over.
        """
        if not is_job_id(job_id):
            raise JobNotFound(job_id)
        try:
            record = await self.records.get(job_id)
        except JobExpired as error:
            gone = error.tombstone
            its = collection(gone.get("pipeline", ""), gone.get("service_type", ""))
            if (gone.get("tenant", ""), its) != (tenant, place):
                raise JobNotFound(job_id) from error
            raise
        if (record.tenant, place_of(record)) != (tenant, place):
            raise JobNotFound(job_id)
        return record

    def broker_of(self, record: JobRecord) -> Broker:
        """The broker of a job's queue.

        Raises:
            Refusal: its model is not in models.yaml (any more).
        """
        broker = self.brokers.get(record.model)
        if broker is None:
            raise Refusal(409, "model_not_configured", f"the model {record.model!r} is not configured here any more")
        return broker

    @property
    def reader(self) -> Broker:
        """Any broker reads the record of any job."""
        return next(iter(self.brokers.values()))


def place_asked(request: Request) -> str:
    """The collection that the request's path names; see ``Edge.find``."""
    parts = request.path_params
    return f"pipelines/{parts['pipeline']}" if "pipeline" in parts else f"jobs/{parts['service_type']}"


def edge_of(request: Request) -> Edge:
    """The parts of the application that serves this request."""
    return cast("Edge", request.app.state.edge)
