"""Verdicts that a relay of the seed's protocol publishes on ``jobs:<model>:completed`` (design §4.4).

Off by default: a publish is not authenticated, so whoever reaches Redis can forge one. The script behind
``complete_foreign`` applies it only while no claim of ours is current; a message that is lost means that the job runs
again. Our own scripts publish on the same channel; their verdicts stand already and are refused without effect.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from queuecore import clock
from queuecore.blobs import BlobStore
from queuecore.broker import Broker, Signals
from queuecore.errors import BlobError, BlobNotFound, BrokerUnavailable, ClaimLost, JobError, OutcomeUnknown
from queuecore.job import Status
from queuecore.names import is_job_id
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

LARGEST_CHARACTERS: Final = 65_536
LONGEST_ERROR_CHARACTERS: Final = 2_000
_PAUSES_SECONDS: Final = (0.1, 0.3, 1.0)
_KEY_REST: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*\Z")


class Completion(msgspec.Struct, frozen=True):
    """The message; other members are ignored."""

    job_id: str
    status: Literal["completed", "failed", "cancelled"]
    result_key: str | None = None
    error: str | None = None


def parse(payload: str) -> Completion:
    """The message, checked.

    Raises:
        ValueError: names the member and the rule.
    """
    if len(payload) > LARGEST_CHARACTERS:
        raise ValueError(f"more than {LARGEST_CHARACTERS} characters")
    try:
        message = msgspec.json.decode(payload.encode(), type=Completion)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not is_job_id(message.job_id):
        raise ValueError("job_id: not one of ours")
    if message.status == "completed":
        folder, _, rest = (message.result_key or "").partition("/")
        if folder != message.job_id or not _KEY_REST.match(rest) or {".", ".."} & set(rest.split("/")):
            raise ValueError("result_key: it must lie under <job_id>/")
    return message


class SeedCompletions:
    """Of one model."""

    def __init__(self, broker: Broker, store: BlobStore) -> None:
        self._broker = broker
        self._store = store

    async def consume(self, signals: Signals, beat: Callable[[], None]) -> None:
        """Apply messages for ever."""
        async for payload in signals.completions(self._broker.model):
            beat()
            outcome, why = await self.apply(payload)
            metrics.SEED_COMPLETIONS.labels(self._broker.model, outcome).inc()
            if outcome != "applied" and why:
                _log.warning(
                    "a published completion was %s: %s", outcome, why,
                    extra={"event": Event.REQUEST_REFUSED, "model": self._broker.model},
                )  # fmt: skip

    async def apply(self, payload: str) -> tuple[Literal["applied", "refused", "malformed"], str]:
        """One message: what became of it, and why it was not applied ("" when that is nothing to tell)."""
        try:
            message = parse(payload)
        except ValueError as error:
            return "malformed", str(error)
        try:
            if message.status == "completed":
                _ = await self._store.size(message.result_key or "")
            await self._complete(message)
        except BlobNotFound:
            return "refused", "its result is not in the store"
        except (BlobError, BrokerUnavailable, OutcomeUnknown) as error:
            return "refused", str(error)
        except (ClaimLost, JobError):
            return "refused", ""  # a verdict of our own scripts comes by here too
        return "applied", ""

    async def _complete(self, message: Completion) -> None:
        for pause_seconds in (*_PAUSES_SECONDS, None):
            try:
                _ = await self._broker.complete_foreign(
                    message.job_id,
                    Status(message.status),
                    result_key=message.result_key or "",
                    error=(message.error or "")[:LONGEST_ERROR_CHARACTERS],
                )
            except (BrokerUnavailable, OutcomeUnknown):
                if pause_seconds is None:
                    raise
                await clock.sleep(pause_seconds)
            else:
                return
