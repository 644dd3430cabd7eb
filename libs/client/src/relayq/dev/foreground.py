"""The stack in the foreground of a terminal: says what it does, and ends at Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from queuecore.clock import monotonic
from relayq.client import DEFAULT_URL
from relayq.dev.plan import Options, Plan
from relayq.dev.stack import running

INTERRUPTED: Final = 130


async def run(options: Options, environ: Mapping[str, str]) -> None:
    """Until SIGINT, SIGTERM or SIGHUP; a second one ends everything at once.

    Raises:
        StackError: it cannot start; says what to do.
    """
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)  # the kernel ends the tethered children
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    began = monotonic()
    report("starting")
    async with running(options, environ, report, stop) as stack:
        if not stop.is_set():
            print(banner(stack.plan, monotonic() - began), flush=True)
        await stack.run(stop)
        report("stopping; a relay that works gets a moment to end its job. Ctrl-C again: at once")
    report("stopped")


def report(text: str) -> None:
    """One line with the time of day."""
    print(f"{datetime.now().astimezone():%H:%M:%S} {text}", flush=True)


def banner(plan: Plan, seconds: float) -> str:
    """What a newcomer needs: where things are and what to type next."""
    model = next(iter(plan.config.models))
    where = "" if plan.gateway_url == DEFAULT_URL else f" --url {plan.gateway_url}"
    relays = f"up to {plan.max_relays}, one per open job" if plan.max_relays else "none: start them yourself"
    embedded = f" (embedded, data in {plan.data})" if plan.redis else ""
    return f"""
relayq is ready after {seconds:.1f} s
  jobs    {plan.gateway_url}
  admin   {plan.admin_url}
  redis   {plan.shown_redis_url}{embedded}
  mock    {plan.mock_url}
  models  {", ".join(plan.config.models)}   ({plan.environ["MODELS_FILE"]})
  relays  {relays}
  logs    {plan.logs}
  check   relayq doctor --data {plan.data}

next, in another terminal:
  relayq submit FILE --model {model} --wait{where}
"""
