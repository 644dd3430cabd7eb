"""A queue remembers its transport; another one is refused while jobs stand in the old one's structures."""

from __future__ import annotations

from redis.exceptions import ResponseError

from queuecore.errors import BrokerUnavailable, ScriptContractError
from queuecore.redis import keys as names
from queuecore.redis.client import Link, raise_refusal
from queuecore.redis.keys import QueueKeys
from queuecore.redis.records import fields_of


class TransportChanged(BrokerUnavailable):
    """models.yaml names another transport than the one that holds this queue's jobs."""


async def note_transport(link: Link, keys: QueueKeys, transport: str) -> None:
    """Write the transport down, or compare it.

    Raises:
        TransportChanged: live jobs are left under another one; the text says how to drain it.
    """
    # Without the right to write the register, only the reaper's care for removed models is lost.
    known, _ = await link.pipeline([("HGET", keys.state, "transport"), ("HSET", names.QUEUES, keys.model, transport)])
    if isinstance(known, ResponseError):
        raise_refusal("HGET", known)
        raise ScriptContractError(f"{keys.state}: {known}") from known
    if known == transport:
        return
    if known is not None:
        left = await _running(link, keys, str(known))
        left += await link.call("ZCARD", keys.waiting)  # pending, paused and ordered ones
        left += await link.call("ZCARD", keys.delayed)
        if left:
            raise TransportChanged(
                f"models.{keys.model}.transport: {left} jobs are left under transport {known}. Let them end under "
                f"`transport: {known}`, or cancel what waits with `relayq purge {keys.model}`; then change it"
            )
    _ = await link.call("HSET", keys.state, "transport", transport)


async def _running(link: Link, keys: QueueKeys, transport: str) -> int:
    """Jobs that stand in the old transport's own structures."""
    if transport == "list":
        return await link.call("LLEN", keys.processing)
    if transport == "sortedset":
        return await link.call("ZCARD", keys.claims_idx)
    if transport == "stage":
        return await link.call("HLEN", keys.fetched)
    entries = sum([await link.call("XLEN", lane) for lane in keys.lanes])
    return entries - await link.call("SCARD", keys.litter)


async def remembered(link: Link) -> dict[str, str]:
    """Every model that ever had a queue here, with the transport that holds it."""
    found: dict[str, str] = {}
    for model in fields_of(await link.call("HGETALL", names.QUEUES)):
        transport = await link.call("HGET", QueueKeys(model).state, "transport")
        if transport:
            found[model] = transport
    return found
