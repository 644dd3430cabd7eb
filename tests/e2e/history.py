"""What happened, in order: every call of the workload, every fault of the nemesis, every observation.

A history is a list of ``Op``. It is written to disk line by line while it grows, so that it survives the test that made
it, and it can be read back: checkers never need the system that made it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

Kind = Literal["submit", "cancel", "read", "run", "notice", "fault", "heal"]
Outcome = Literal["invoked", "ok", "refused", "unknown"]
TERMINAL = frozenset({"completed", "failed", "cancelled", "expired"})


class Op(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a history.

    ``at_seconds`` is seconds since the epoch on the machine of the tests. ``tag`` is the workload's own name of a job:
    it exists before the job has an id, travels in its params, and comes back in the model's journal.
    """

    at_seconds: float
    kind: Kind
    outcome: Outcome = "ok"
    tag: str = ""
    job_id: str = ""
    status: str = ""  # read: the status that was seen; submit: the one that was answered; notice: the verdict told
    attempts: int = 0  # read: how often the job had been claimed by then
    digest: str = ""  # read: the result's sha256; ok when completed
    error_code: str = ""  # read: the job's; submit: the problem's
    http_status: int = 0  # of the call itself; 0 when no answer came
    target: str = ""  # fault, heal: the container
    detail: str = ""  # fault, heal: what was done; notice: the event's id; unknown: why


class History:
    """Collects operations from any thread."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] | None = None) -> None:
        self._ops: list[Op] = []
        self._lock = threading.Lock()
        self._clock = clock or (lambda: time.time_ns() / 1e9)
        self._file = path.open("ab") if path else None

    def add(
        self,
        kind: Kind,
        outcome: Outcome = "ok",
        *,
        at_seconds: float | None = None,
        tag: str = "",
        job_id: str = "",
        status: str = "",
        attempts: int = 0,
        digest: str = "",
        error_code: str = "",
        http_status: int = 0,
        target: str = "",
        detail: str = "",
    ) -> Op:
        """Record one operation, now unless ``at_seconds`` says otherwise; returns it."""
        op = Op(
            at_seconds=self._clock() if at_seconds is None else at_seconds,
            kind=kind,
            outcome=outcome,
            tag=tag,
            job_id=job_id,
            status=status,
            attempts=attempts,
            digest=digest,
            error_code=error_code,
            http_status=http_status,
            target=target,
            detail=detail,
        )
        with self._lock:
            self._ops.append(op)
            if self._file is not None and not self._file.closed:
                _ = self._file.write(msgspec.json.encode(op) + b"\n")
                self._file.flush()
        return op

    @property
    def ops(self) -> Sequence[Op]:
        """What was recorded so far, in the order of recording."""
        with self._lock:
            return tuple(self._ops)

    def acknowledged(self) -> dict[str, str]:
        """tag -> job id of every submission that was answered with one."""
        return {op.tag: op.job_id for op in self.ops if op.kind == "submit" and op.outcome == "ok"}

    def close(self) -> None:
        """Close the file; operations that a straggling thread still records stay in memory."""
        with self._lock:
            if self._file is not None:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_history(path: Path) -> list[Op]:
    """The operations of a file that ``History`` wrote."""
    return [msgspec.json.decode(line, type=Op) for line in path.read_bytes().splitlines() if line]


def of_kind(ops: Iterable[Op], *kinds: Kind) -> list[Op]:
    """The operations of these kinds."""
    return [op for op in ops if op.kind in kinds]
