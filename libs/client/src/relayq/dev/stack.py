"""The embedded stack: every process of the product, started, kept and ended in order."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import httpx

from queuecore.clock import monotonic, sleep
from queuecore.errors import BrokerError, ConfigurationError
from queuecore.redis import RedisQueue, open_redis
from queuecore.settings import CommonSettings, read_settings
from relayq.dev.child import Report, Service, kill, launch
from relayq.dev.lock import locked
from relayq.dev.plan import Options, Plan, StackError, make_plan
from relayq.dev.scaler import Scaler

START_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.05
WORK_STOP_SECONDS: Final = 10.0  # relays end their jobs, the gateway its requests
BASE_STOP_SECONDS: Final = 5.0
HTTP_OK: Final = 200


class Stack:
    """Every process of a plan."""

    def __init__(self, plan: Plan, queue: RedisQueue, report: Report) -> None:
        self.plan = plan
        self._queue = queue
        self._report = report
        self._base = [Service(plan.redis, plan.logs, report)] if plan.redis else []
        self._services = [Service(command, plan.logs, report) for command in plan.services]
        self._scaling: asyncio.Task[None] | None = None
        brokers = {name: queue.broker(name, model) for name, model in plan.config.models.items()}

        async def open_jobs() -> Mapping[str, int]:
            depths = {name: await broker.counts() for name, broker in brokers.items()}
            return {name: depth.pending + depth.processing for name, depth in depths.items()}

        async def start_relay(model: str) -> Process:
            return await launch(plan.relay(model), plan.logs / "relay.log")

        self._scaler = Scaler(open_jobs, start_relay, plan.max_relays, report)

    @property
    def relays(self) -> Mapping[int, str]:
        """pid -> model of the relays that run."""
        return self._scaler.relays

    async def start(self, stop: asyncio.Event) -> None:
        """Returns when a job could be submitted, or when ``stop`` is set.

        Raises:
            StackError: a process ended, or it took too long; with the reason.
        """
        end = monotonic() + START_SECONDS
        for service in self._base:
            await service.start()
        await self._until_redis_answers(end, stop)
        for service in self._services:
            await service.start()
        await self._until_ready(end, stop)
        for service in (*self._base, *self._services):
            service.settle()
            service.check()
        if self.plan.max_relays > 0 and not stop.is_set():
            self._scaling = asyncio.create_task(self._scaler.run(), name="scaler")

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set. An error of the scaler ends it too."""
        stopping = asyncio.create_task(stop.wait())
        tasks: set[asyncio.Task[object]] = {stopping}
        if self._scaling is not None:
            tasks.add(self._scaling)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        _ = stopping.cancel()
        for task in done:
            _ = await task

    async def stop(self) -> None:
        """End every process: what works first, what it stands on last. Bounded."""
        if self._scaling is not None:
            _ = self._scaling.cancel()
            with suppress(asyncio.CancelledError):
                await self._scaling
        above = [service for service in self._services if service.name != "mock"]
        below = [service for service in self._services if service.name == "mock"] + self._base
        killed = await asyncio.gather(
            self._scaler.stop(within_seconds=WORK_STOP_SECONDS),
            *(service.stop(within_seconds=WORK_STOP_SECONDS) for service in above),
        )
        for pid in killed[0]:
            self._report(f"relay {pid} was killed after {WORK_STOP_SECONDS:g} s; its job runs again at the next start")
        _ = await asyncio.gather(*(service.stop(within_seconds=BASE_STOP_SECONDS) for service in below))

    def kill(self) -> None:
        """End every process now. Jobs are kept: that is what the queue is for."""
        self._scaler.kill()
        for service in (*self._services, *self._base):
            kill([service.process] if service.process else [])

    async def _until_redis_answers(self, end: float, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._queue.server.ping()
            except BrokerError as error:
                for service in self._base:
                    service.check()
                if monotonic() > end or not self._base:
                    raise StackError(f"Redis does not answer: {error}") from error
                await sleep(POLL_SECONDS)
            else:
                return

    async def _until_ready(self, end: float, stop: asyncio.Event) -> None:
        said = "nothing yet"
        async with httpx.AsyncClient(base_url=self.plan.gateway_url, trust_env=False) as http:
            while monotonic() < end:
                for service in (*self._base, *self._services):
                    service.check()
                if stop.is_set():
                    return
                try:
                    answer = await http.get("/health/ready", timeout=5)
                except httpx.TransportError as error:
                    said = str(error) or type(error).__name__
                else:
                    if answer.status_code == HTTP_OK:
                        return
                    said = answer.text.strip()
                await sleep(POLL_SECONDS)
        raise StackError(
            f"the gateway was not ready within {START_SECONDS:g} s; it said: {said}. Logs: {self.plan.logs}"
        )


@asynccontextmanager
async def running(
    options: Options, environ: Mapping[str, str], report: Report, stop: asyncio.Event
) -> AsyncGenerator[Stack, None]:
    """A ready stack (or one that ``stop`` interrupted); leaving the block ends all of it.

    Raises:
        StackError: it cannot start; says what to do.
    """
    data = options.data.absolute()
    with locked(data):
        plan = make_plan(options, environ)
        _prepare(plan)
        try:
            queue = await open_redis(read_settings(CommonSettings, plan.environ), name="relayq-dev")
            stack = Stack(plan, queue, report)
        except ConfigurationError as error:
            raise StackError(str(error)) from error
        try:
            await stack.start(stop)
            yield stack
        finally:
            try:
                await stack.stop()
            finally:
                stack.kill()
                plan.forget_environment()
                await queue.aclose()


def _prepare(plan: Plan) -> None:
    """Directories, and last run's logs out of the way."""
    plan.logs.mkdir(exist_ok=True)
    (plan.data / "blobs").mkdir(exist_ok=True)
    _ = (plan.data / ".gitignore").write_text("*\n", "utf-8")
    plan.write_environment()
    for log in plan.logs.glob("*.log"):
        _ = log.replace(log.with_suffix(".log.1"))
