"""One run of one job: input from the store, request to the model, answer to the store."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

from queuecore.blobs import BlobStore
from queuecore.broker import Claim, Progress, Result
from queuecore.clock import monotonic, sleep
from queuecore.errors import BlobError, BlobUnavailable
from queuecore.job import result_key
from queuecore.telemetry.names import Event
from relay.failure import store_failed
from relay.link import Address
from relay.request import build_request
from relay.source import STORE_BACKOFF, stored_input
from relay.spoken import Spoken, told
from relay.upstream import Exchange
from relay.usage import Usage

# An answer up to this size is kept until it is stored, so that a fault of the store does not cost the inference.
SPOOLED_BYTES: Final = 8 * 1024 * 1024
_log = logging.getLogger(__name__)


class Run:
    """Runs the claim's job once.

    ``report`` is told what a model that streams has said last; ``patience_seconds`` bounds every wait for a store that
    does not answer.
    """

    def __init__(
        self,
        claim: Claim,
        store: Awaitable[BlobStore],
        address: Address,
        *,
        report: Callable[[Progress], Awaitable[None]],
        patience_seconds: float,
    ) -> None:
        self._claim = claim
        self._report = report
        self._opening = store
        self._address = address
        self._patience_seconds = patience_seconds
        self._exchange: Exchange | None = None

    def hang_up(self) -> None:
        """Close the connection to the model now, before whatever else a cancellation has to tidy up."""
        if self._exchange:
            self._exchange.abort()

    async def result(self) -> Result:
        """The stored answer. When this is cancelled, nothing half-written stays in the store.

        Raises:
            RunFailed: why there is none.
        """
        try:
            return await self._result()
        except BlobError as error:
            _log.warning("the store failed", extra={"event": Event.CONNECTION_LOST, "error": str(error)})
            raise store_failed(error) from error

    async def _result(self) -> Result:
        record = self._claim.record
        store = await self._opening
        file = stored_input(store, record, patience_seconds=self._patience_seconds)
        async with contextlib.aclosing(file):
            self._exchange = Exchange(self._address, await build_request(record, file))
            async with self._exchange as exchange:
                return await self._stored(store, exchange)

    async def _stored(self, store: BlobStore, exchange: Exchange) -> Result:
        claim = self._claim
        key = result_key(claim.job_id, claim.fence, claim.claim_id)
        digest = hashlib.sha256()
        size = 0
        spooled: list[bytes] = []

        async def counted(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
            nonlocal size
            async for chunk in chunks:
                digest.update(chunk)
                usage.feed(chunk)
                spoken.feed(chunk)
                size += len(chunk)
                yield chunk

        usage, spoken = Usage(exchange.content_type), Spoken(exchange.content_type)
        answer = counted(exchange.chunks())
        async with told(spoken, self._report):
            async for chunk in answer:
                spooled.append(chunk)
                if size > SPOOLED_BYTES:
                    _ = await store.put(key, _joined(spooled, answer))
                    break
            else:
                exchange.abort()  # the model is done and need not wait for the store
                await self._put_until_stored(store, key, spooled)
        return Result(
            key, size, exchange.content_type, digest.hexdigest(), http_status=exchange.status, tokens=usage.tokens()
        )

    async def _put_until_stored(self, store: BlobStore, key: str, spooled: list[bytes]) -> None:
        failures = 0
        started = monotonic()
        while True:
            try:
                _ = await store.put(key, _each(spooled))
            except BlobUnavailable as error:
                failures += 1
                pause = STORE_BACKOFF.pause_seconds(failures)
                if monotonic() - started + pause > self._patience_seconds:
                    raise
                _log.warning(
                    "the store did not take the result; trying again",
                    extra={"event": Event.CONNECTION_LOST, "job_id": self._claim.job_id, "error": str(error)},
                )
                await sleep(pause)
            else:
                return


async def _each(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def _joined(spooled: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while spooled:  # handed over and freed
        yield spooled.pop(0)
    async for chunk in rest:
        yield chunk
