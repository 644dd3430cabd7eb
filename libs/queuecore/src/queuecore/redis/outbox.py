"""Verdicts on their way to the gateway: a stream with one consumer group, the same for every transport (G9)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from queuecore.broker import OutboxEvent
from queuecore.errors import ScriptContractError
from queuecore.job import Status
from queuecore.redis.client import Link
from queuecore.redis.keys import QueueKeys
from queuecore.redis.records import fields_of, tolerant_record

GROUP: Final = "gateway"
_REDELIVER_AFTER_MS: Final = 60_000


class Outbox:
    """One queue's verdicts."""

    def __init__(self, link: Link, keys: QueueKeys) -> None:
        self._link = link
        self._key = keys.outbox
        self._group_made = False

    async def events(self, consumer: str, *, wait_seconds: float, limit: int) -> Sequence[OutboxEvent]:
        """See ``Broker.events``."""
        for _ in range(2):
            try:
                if not self._group_made:
                    await self._make_group()
                stale = await self._link.call(
                    "XAUTOCLAIM", self._key, GROUP, consumer, _REDELIVER_AFTER_MS, "0", "COUNT", limit
                )
                if stale[1]:
                    return [event for entry, flat in stale[1] if flat and (event := _event(entry, flat, 2))]
                block = ("BLOCK", max(1, int(wait_seconds * 1000))) if wait_seconds > 0 else ()
                reply = await self._link.call(
                    "XREADGROUP", "GROUP", GROUP, consumer, "COUNT", limit, *block, "STREAMS", self._key, ">",
                    reply_seconds=wait_seconds + 15,
                )  # fmt: skip
            except ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise ScriptContractError(f"outbox: {error}") from error
                self._group_made = False  # the stream was deleted: begin again
                continue
            if not reply:
                return []
            entries = next(iter(reply.values())) if isinstance(reply, Mapping) else reply[0][1]
            return [event for entry, flat in entries if flat and (event := _event(entry, flat, 1))]
        return []

    async def _make_group(self) -> None:
        try:
            _ = await self._link.call("XGROUP", "CREATE", self._key, GROUP, "0", "MKSTREAM")
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise ScriptContractError(f"outbox: {error}") from error
        self._group_made = True

    async def acknowledge(self, entries: Sequence[str]) -> None:
        """See ``Broker.acknowledge``."""
        if entries:
            replies = await self._link.pipeline([("XACK", self._key, GROUP, *entries), ("XDEL", self._key, *entries)])
            for reply in replies:
                if isinstance(reply, ResponseError):
                    raise ScriptContractError(f"outbox: {reply}")


def _event(entry: str, flat: Any, deliveries: int) -> OutboxEvent | None:
    fields = fields_of(flat)
    try:
        return OutboxEvent(
            entry, fields["event"], fields["job_id"], Status(fields["status"]), int(fields["finished_at"]), deliveries,
            tolerant_record({"id": fields["job_id"]} | json.loads(fields["record"])) if "record" in fields else None,
        )  # fmt: skip
    except (KeyError, ValueError):
        return OutboxEvent(entry, "", "", Status.FAILED, 0, deliveries)  # not ours: acknowledged and gone
