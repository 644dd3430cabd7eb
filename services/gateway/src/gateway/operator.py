"""What an operator does to a whole queue: many small steps of the broker, each safe to repeat."""

from __future__ import annotations

from typing import Final

from queuecore.broker import Broker
from queuecore.errors import JobNotFound, OutcomeUnknown
from queuecore.names import is_job_id

PURGE_STEP: Final = 1_000
PURGE_STEPS: Final = 1_000
REDRIVE_MOST: Final = 10_000
_PAGE: Final = 500


async def purge_all(broker: Broker) -> int:
    """Cancel every waiting job; how many there were."""
    purged = 0
    for _ in range(PURGE_STEPS):
        step = await broker.purge(limit=PURGE_STEP)
        purged += step
        if not step:
            break
    return purged


async def deadletter_ids(broker: Broker) -> list[str]:
    """The dead letters, oldest first, up to ``REDRIVE_MOST``."""
    ids: list[str] = []
    while len(ids) < REDRIVE_MOST:
        page = await broker.deadletters(offset=len(ids), limit=_PAGE)
        if not page:
            break
        ids += [record.id for record in page]
    return ids


async def redrive(broker: Broker, job_id: str) -> None:
    """Redrive the generation that is there now; a repeat after a lost reply leaves the same one.

    Raises:
        JobNotFound: there is no such job in this queue.
        WrongState: it is not a dead letter.
    """
    if not is_job_id(job_id):
        raise JobNotFound(job_id)
    record = await broker.get(job_id)
    if record.model != broker.model:
        raise JobNotFound(job_id)
    try:
        await broker.redrive(job_id, generation=record.generation)
    except OutcomeUnknown:
        await broker.redrive(job_id, generation=record.generation)
