"""The job's input as one stream, whatever the store does in between."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator
from typing import Final

from queuecore.blobs import BlobStore
from queuecore.clock import monotonic, sleep
from queuecore.errors import BlobCorrupt, BlobUnavailable
from queuecore.job import JobRecord
from queuecore.retry import Backoff
from queuecore.telemetry.names import Event

STORE_BACKOFF: Final = Backoff(0.2, 5)
_log = logging.getLogger(__name__)


async def stored_input(store: BlobStore, record: JobRecord, *, patience_seconds: float) -> AsyncGenerator[bytes, None]:
    """The input's bytes. A store that fails is asked again, from the byte where it stopped.

    The last piece is given only when size and SHA-256 are those of the record: a model never gets a whole request with
    a damaged file.

    Raises:
        BlobNotFound, BlobCorrupt
        BlobUnavailable: no byte for ``patience_seconds``.
    """
    digest = hashlib.sha256()
    position, failures, held = 0, 0, b""
    progress = monotonic()
    while True:
        try:
            async with store.get(record.input_key, offset=position) as chunks:
                async for chunk in chunks:
                    digest.update(chunk)
                    position += len(chunk)
                    failures, progress = 0, monotonic()
                    if held:
                        yield held
                    held = chunk
        except BlobUnavailable as error:
            if position == record.input_size:
                break  # every byte came; there is nothing left to ask for
            failures += 1
            pause = STORE_BACKOFF.pause_seconds(failures)
            if monotonic() - progress + pause > patience_seconds:
                raise
            _log.warning(
                "the store did not give the input; asking again",
                extra={"event": Event.CONNECTION_LOST, "job_id": record.id, "error": str(error), "offset": position},
            )
            await sleep(pause)
        else:
            break
    if position != record.input_size:
        raise BlobCorrupt(record.input_key, f"{position} bytes are stored, {record.input_size} were submitted")
    if record.input_sha256 and digest.hexdigest() != record.input_sha256:
        raise BlobCorrupt(record.input_key, "its SHA-256 is not the one of the submission")
    if held:
        yield held
