"""Objects that nothing refers to any more: those of jobs without a record, and results of claims that lost.

What may be deleted, and when:

* An object is judged by its job's record, never by a date of its own. An input is an orphan only when its job has no
  record; so it lives as long as the job can be read, run or redriven.
* A result is an orphan too when its claim can never win any more: the job has a verdict that names another result (or
  none), or a later claim is the current one.
* An orphan is deleted once it has been one for ``min_age_ms``, counted from when a sweep first saw it so, in a register
  that all sweepers share and on the clock of its server. A submission under way, or a queue server that lost its last
  second in a crash, thus never costs anybody an object.
* Keys that are not ours are left alone. A prefix belongs to one Redis: two that share a prefix would call each other's
  objects orphans.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from queuecore.blobs import BlobStore
from queuecore.job import JobRecord
from queuecore.names import is_job_id
from queuecore.storage.probe import PROBE_PREFIX

Kind = Literal["unrecorded", "superseded"]  # as the metric's label says it

# The records of these jobs (`Server.records`); None: there is none. A job that is left out is left alone.
States = Callable[[Sequence[str]], Awaitable[Mapping[str, JobRecord | None]]]

_RESULT_PARTS: Final = 3


class FirstSeen(Protocol):
    """Since when orphans are known as such: one register for all sweepers of a store. ``Server`` is one."""

    async def first_seen(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Milliseconds since each key was first asked for, on the register's clock; 0 when this is the first time."""
        ...

    async def forget(self, keys: Sequence[str]) -> None:
        """They are no orphans (any more): the next time counts as the first."""
        ...


class SweptObject(NamedTuple):
    """One object that was deleted."""

    key: str
    kind: Kind


class Sweep(NamedTuple):
    """What one pass did. ``cursor`` continues it; "" when the pass reached the last object."""

    cursor: str
    examined: int
    waiting: int  # orphans that are not old enough yet
    deleted: tuple[SweptObject, ...]


async def sweep_objects(
    store: BlobStore, states: States, register: FirstSeen, *, min_age_ms: int, cursor: str = "", limit: int = 1_000
) -> Sweep:
    """Look at up to ``limit`` objects behind ``cursor`` and delete the orphans that are old enough.

    Any number of sweepers may run at once. A pass that fails in the middle is simply repeated.

    Raises:
        BlobUnavailable: the store does not answer.
        BrokerUnavailable, OutcomeUnknown: as ``states`` and ``register`` do.
    """
    keys = await _some_keys(store, cursor, limit)
    job_ids = sorted({job_id for key in keys if (job_id := _job_id(key)) is not None})
    records = await states(job_ids) if job_ids else {}
    orphans: dict[str, Kind] = {key: kind for key in keys if (kind := _orphan(key, records)) is not None}
    await register.forget([key for key in keys if key not in orphans])
    ages = await register.first_seen(list(orphans)) if orphans else {}
    deleted: list[SweptObject] = []
    for key, kind in orphans.items():
        if ages[key] >= min_age_ms:
            await store.delete(key)
            deleted.append(SweptObject(key, kind))
    await register.forget([swept.key for swept in deleted])
    next_cursor = keys[-1] if len(keys) == limit else ""
    return Sweep(next_cursor, len(keys), len(orphans) - len(deleted), tuple(deleted))


async def _some_keys(store: BlobStore, cursor: str, limit: int) -> list[str]:
    keys: list[str] = []
    async for entry in store.scan(after=cursor):
        keys.append(entry.key)
        if len(keys) == limit:
            break
    return keys


def _job_id(key: str) -> str | None:
    """The job that an object belongs to; None when it belongs to none."""
    job_id, slash, _ = key.partition("/")
    return job_id if slash and is_job_id(job_id) else None


def _orphan(key: str, records: Mapping[str, JobRecord | None]) -> Kind | None:
    """What kind of orphan an object is; None when it is none, or not ours."""
    job_id = _job_id(key)
    if job_id is None:
        return "unrecorded" if key.startswith(PROBE_PREFIX) else None  # a killed process's probe
    if job_id not in records:
        return None
    record = records[job_id]
    if record is None:
        return "unrecorded"
    return "superseded" if _superseded(key, record) else None


def _superseded(key: str, record: JobRecord) -> bool:
    """Whether the object is a result that can never become the job's."""
    claim = _claim(key)
    if claim is None or key in {record.result_key, record.input_key}:  # a stage's input is the result before it
        return False
    if record.terminal:
        return True
    # a fence that is ahead of the record comes from before a crash of the queue's server: the job will decide
    return claim != (record.fence, record.claim_id) and claim[0] <= record.fence


def _claim(key: str) -> tuple[int, str] | None:
    """(fence, claim_id) of ``<id>/<fence>-<claim_id>/result``; None for any other object."""
    parts = key.split("/")
    if len(parts) != _RESULT_PARTS or parts[2] != "result":
        return None
    fence, _, claim_id = parts[1].partition("-")
    return (int(fence), claim_id) if fence.isascii() and fence.isdigit() and claim_id else None
