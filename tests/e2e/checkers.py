"""Judges of a history. Pure: they see operations and dumps, never the system; their own tests plant bad histories.

Each checker answers a list of sentences, one for each thing that is wrong; an empty list is a pass.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from e2e.history import TERMINAL, Op, of_kind


class Submissions(NamedTuple):
    """Tags by the best answer that any of their submissions got."""

    acknowledged: Mapping[str, str]  # tag -> job id
    unknown: frozenset[str]
    refused: frozenset[str]


def submissions(ops: Iterable[Op]) -> Submissions:
    """Sort the tags: an acknowledgement beats an unknown outcome, which beats a refusal."""
    acknowledged: dict[str, str] = {}
    outcomes: defaultdict[str, set[str]] = defaultdict(set)
    for op in of_kind(ops, "submit"):
        outcomes[op.tag].add(op.outcome)
        if op.outcome == "ok":
            acknowledged[op.tag] = op.job_id
    # A call without an answer line was cut off with its client: nobody knows what became of it.
    unknown = {tag for tag, seen in outcomes.items() if "unknown" in seen or seen == {"invoked"}}
    refused = {tag for tag, seen in outcomes.items() if "refused" in seen}
    return Submissions(
        acknowledged, frozenset(unknown - acknowledged.keys()), frozenset(refused - acknowledged.keys() - unknown)
    )


def nothing_lost(ops: Sequence[Op]) -> list[str]:
    """G1: every acknowledged job was seen to end."""
    ended = {op.job_id for op in _verdicts(ops)}
    return [
        f"job {job_id} ({tag}) was acknowledged and never ended"
        for tag, job_id in submissions(ops).acknowledged.items()
        if job_id not in ended
    ]


def one_verdict(ops: Sequence[Op]) -> list[str]:
    """G3, G8: what a client was told about a job's end never changes, and a completed job has a result."""
    problems: list[str] = []
    verdicts: dict[str, tuple[str, str, str]] = {}
    for op in sorted(of_kind(ops, "read", "cancel"), key=lambda op: op.at_seconds):
        if op.outcome != "ok":
            continue
        told = (op.status, op.digest, op.error_code)
        before = verdicts.get(op.job_id)
        if before is None:
            if op.status in TERMINAL:
                verdicts[op.job_id] = told
                if op.status == "completed" and not op.digest:
                    problems.append(f"job {op.job_id} completed without a result")
        elif op.status not in TERMINAL:
            problems.append(f"job {op.job_id} was {before[0]} and then {op.status}")
        elif op.kind == "read" and told != before and not _same_cancel(told, before):
            problems.append(f"job {op.job_id} ended as {before} and then as {told}")
        elif op.kind == "cancel" and op.status != before[0]:
            problems.append(f"job {op.job_id} ended as {before[0]} and was then told {op.status}")
    return problems


def no_phantom(ops: Sequence[Op]) -> list[str]:
    """The model ran only what was submitted and not refused; an unknown submission may have come in."""
    sorted_tags = submissions(ops)
    known = sorted_tags.acknowledged.keys() | sorted_tags.unknown
    runs = Counter(op.tag for op in of_kind(ops, "run"))
    return [
        f"the model ran {tag!r} {count} times, which nobody submitted"
        for tag, count in runs.items()
        if tag not in known
    ]


def bounded_repeats(ops: Sequence[Op], *, runs_allowed: int) -> list[str]:
    """A job runs again only after a fault while it was open, and never more than ``runs_allowed`` times."""
    first_call = {op.tag: op.at_seconds for op in reversed(of_kind(ops, "submit")) if op.outcome == "invoked"}
    faults = sorted(op.at_seconds for op in of_kind(ops, "fault"))
    runs: defaultdict[str, list[float]] = defaultdict(list)
    for op in of_kind(ops, "run"):
        runs[op.tag].append(op.at_seconds)
    problems: list[str] = []
    for tag, times in runs.items():
        if len(times) > runs_allowed:
            problems.append(f"{tag} ran {len(times)} times, {runs_allowed} are allowed")
        if len(times) > 1 and not any(first_call.get(tag, -math.inf) <= fault <= max(times) for fault in faults):
            problems.append(f"{tag} ran {len(times)} times without any fault")
    problems += [
        f"job {op.job_id} was claimed {op.attempts} times, {runs_allowed} are allowed"
        for op in _verdicts(ops)
        if op.attempts > runs_allowed
    ]
    return problems


def notices(ops: Sequence[Op]) -> list[str]:
    """G9: every verdict was told at least once, under one id, and as what it was. Every job of a workload asks for it."""
    told: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for op in of_kind(ops, "notice"):
        told[op.job_id].add((op.detail, op.status))
    problems: list[str] = []
    for job_id, verdict in _first_verdicts(ops).items():
        match sorted(told[job_id]):
            case []:
                problems.append(f"nobody was told that job {job_id} is {verdict.status}")
            case [(_, status)]:
                if status != verdict.status:
                    problems.append(f"job {job_id} is {verdict.status} and was told as {status}")
            case several:
                problems.append(f"job {job_id} was told as {len(several)} events: {several}")
    return problems


def all_completed(ops: Sequence[Op]) -> list[str]:
    """No job failed."""
    return [
        f"job {op.job_id} ended as {op.status} {op.error_code}".rstrip()
        for op in _first_verdicts(ops).values()
        if op.status != "completed"
    ]


def only_documented_refusals(ops: Sequence[Op], *, documented: frozenset[int] = frozenset({503})) -> list[str]:
    """Every call got an answer, and a refusal was one of the ``documented`` statuses."""
    problems: list[str] = []
    for op in of_kind(ops, "submit", "read", "cancel"):
        if op.outcome == "unknown":
            problems.append(f"{op.kind} of {op.tag or op.job_id} got no answer: {op.detail}")
        elif op.outcome == "refused" and op.http_status not in documented:
            problems.append(f"{op.kind} of {op.tag or op.job_id} was refused with {op.http_status} {op.error_code}")
    return problems


def recovery_seconds(ops: Sequence[Op]) -> dict[str, float]:
    """Job id -> seconds from the fault that hit its owner to its next claim; infinite when there was none.

    A fault names the job that ran in its target; the next claim is the first time the job is seen with more attempts
    than anybody had seen before the fault.
    """
    reads = sorted((op for op in of_kind(ops, "read") if op.outcome == "ok"), key=lambda op: op.at_seconds)
    found: dict[str, float] = {}
    for fault in of_kind(ops, "fault"):
        if not fault.job_id:
            continue
        mine = [op for op in reads if op.job_id == fault.job_id]
        before = max((op.attempts for op in mine if op.at_seconds <= fault.at_seconds), default=0)
        again = (op.at_seconds for op in mine if op.at_seconds > fault.at_seconds and op.attempts > before)
        found[fault.job_id] = round(next(again, math.inf) - fault.at_seconds, 3)
    return found


def recovered_within(ops: Sequence[Op], *, limit_seconds: float) -> list[str]:
    """Every job whose owner was hit was claimed again within the limit."""
    times = recovery_seconds(ops)
    if not times:
        return ["no fault hit a running job, so no recovery was measured"]
    return [
        f"job {job_id} was claimed again {seconds} s after the fault, {limit_seconds} s are allowed"
        for job_id, seconds in times.items()
        if seconds > limit_seconds
    ]


def drained(dump: Mapping[str, int]) -> list[str]:
    """Nothing is left in any structure that holds live jobs, claims or undelivered verdicts (name -> length)."""
    return [f"{name} still holds {length}" for name, length in dump.items() if length]


def flat_memory(
    samples: Mapping[str, Sequence[int]], *, growth_allowed: float = 0.15, slack_bytes: int = 4 << 20
) -> list[str]:
    """Process -> resident bytes over time: the last third is not larger than the middle third, beyond the allowances.

    The first third warms up: imports, pools, caches.
    """
    problems: list[str] = []
    for process, sizes in samples.items():
        third = len(sizes) // 3
        if third < 3:
            problems.append(f"{process}: {len(sizes)} samples are too few to judge")
            continue
        middle, last = statistics.median(sizes[third : 2 * third]), statistics.median(sizes[-third:])
        if last > middle * (1 + growth_allowed) + slack_bytes:
            problems.append(f"{process} grew from {middle / 2**20:.1f} to {last / 2**20:.1f} MiB")
    return problems


def _verdicts(ops: Iterable[Op]) -> list[Op]:
    return [op for op in of_kind(ops, "read", "cancel") if op.outcome == "ok" and op.status in TERMINAL]


def _first_verdicts(ops: Iterable[Op]) -> dict[str, Op]:
    found: dict[str, Op] = {}
    for op in sorted(_verdicts(ops), key=lambda op: op.at_seconds):
        _ = found.setdefault(op.job_id, op)
    return found


def _same_cancel(told: tuple[str, str, str], before: tuple[str, str, str]) -> bool:
    """A cancel call answers no error code, the status document of the same verdict does."""
    return told[0] == before[0] == "cancelled" and "" in (told[2], before[2])
