"""A relay reduced to its claim: holds a subscription, claims one job, renews, and registers every new connection.

``python owner.py URL MODEL NAME LEASE_SECONDS`` prints ``claimed <job id> <client>`` and then ``registered <client>``
at each new connection, or ``lost``.
"""

from __future__ import annotations

import asyncio
import sys

from queuecore.broker import Claim, Worker
from queuecore.config import ModelConfig
from queuecore.errors import BrokerError, ClaimLost
from queuecore.names import new_claim_id
from queuecore.redis import open_redis
from queuecore.settings import CommonSettings, Secret


class Owner:
    def __init__(self) -> None:
        self.client = ""
        self.connected = asyncio.Event()

    def note(self, client: str) -> None:
        self.client = client
        self.connected.set()


async def main(url: str, model: str, name: str, lease_seconds: int) -> None:
    queue = await open_redis(CommonSettings(redis_url=Secret(url)), name=name)
    config = ModelConfig(service_type="test", operations={"run": "/run"}, lease_seconds=lease_seconds)
    broker, owner = queue.broker(model, config), Owner()

    async def listen() -> None:
        async for _ in queue.signals.cancels(model, owner.note):
            pass

    listening = asyncio.create_task(listen())
    _ = await owner.connected.wait()
    owner.connected.clear()
    claim = await broker.claim(Worker(name, owner.client), new_claim_id(), wait_seconds=30)
    assert claim is not None
    say(f"claimed {claim.job_id} {owner.client}")
    while not listening.done():
        try:
            async with asyncio.timeout(lease_seconds / 3):
                _ = await owner.connected.wait()
        except TimeoutError:
            pass
        await renew(broker, claim, owner)


async def renew(broker: object, claim: Claim, owner: Owner) -> None:
    fresh, client = owner.connected.is_set(), owner.client
    owner.connected.clear()
    try:
        _ = await broker.renew(claim, client)  # pyright: ignore[reportAttributeAccessIssue]
    except ClaimLost:
        say("lost")
        raise SystemExit(3) from None
    except BrokerError:
        if fresh:
            owner.connected.set()
        await asyncio.sleep(0.05)
        return
    if fresh:
        say(f"registered {client}")


def say(line: str) -> None:
    _ = sys.stdout.write(f"{line}\n")
    _ = sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
