"""How documents look on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from relayq.job import Job, Stage
from relayq.upload import Progress as Transferred

COLOURS: Final = {
    "pending": "yellow",
    "processing": "cyan",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "expired": "magenta",
}
WIDE: Final = 240
UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def _console() -> Console:
    """A pipe has no width to fit into."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)


def print_json(document: object) -> None:
    """One line of JSON."""
    print(json_text(document), flush=True)


def json_text(value: object) -> str:
    """Its JSON, on one line."""
    return json.dumps(value, ensure_ascii=False)


def print_job(job: Job) -> None:
    """A status document as a small table."""
    table = Table.grid(padding=(0, 2))
    for name, value in _rows(job):
        table.add_row(Text(name, style="dim"), value)
    _console().print(table)


def _rows(job: Job) -> Iterable[tuple[str, Text]]:
    yield "job", Text(job.job_id)
    yield "status", _status(job)
    yield "model", Text(f"{job.model} ({job.service_type}, {job.operation})")
    if job.queue_position is not None:
        yield "position", Text(f"{job.queue_position} ahead")
    deaths = f", {job.reaps} of them after a relay died" if job.reaps else ""
    yield "attempts", Text(f"{job.attempts}{deaths}")
    if job.created_at:
        yield "submitted", Text(f"{job.created_at:%Y-%m-%d %H:%M:%S} UTC ({ago(job.created_at)} ago)")
    if job.started_at and job.created_at:
        yield "waited", Text(span((job.started_at - job.created_at).total_seconds()))
    if job.started_at and job.finished_at:
        yield "ran", Text(span((job.finished_at - job.started_at).total_seconds()))
    if job.pipeline:
        yield "pipeline", Text(job.pipeline)
    for stage in job.stages:
        yield f"  {stage.stage}", _stage(stage)
    if job.error:
        http = f" (HTTP {job.error.http_status})" if job.error.http_status else ""
        yield "error", Text(f"{job.error.code}{http}: {job.error.message}", style="red")
    if job.result and job.terminal:
        yield "result", Text(f"{size(job.result.size)} of {job.result.content_type}, sha256 {job.result.sha256}")


def _stage(stage: Stage) -> Text:
    text = Text(stage.status, style=COLOURS.get(stage.status, ""))
    if stage.queued_at and stage.started_at:
        _ = text.append(f", waited {span((stage.started_at - stage.queued_at).total_seconds())}")
    if stage.started_at and stage.finished_at:
        _ = text.append(f", ran {span((stage.finished_at - stage.started_at).total_seconds())}")
    return text.append(f", {stage.attempts} attempts") if stage.attempts > 1 else text


def print_jobs(jobs: Sequence[Job]) -> None:
    """One line a job."""
    _console().print(_jobs_table(jobs))


@contextmanager
def live_jobs(*, active: bool) -> Generator[Callable[[Sequence[Job]], None] | None, None, None]:
    """A table of jobs that each call draws anew; None when not ``active``."""
    if not active:
        yield None
        return
    with Live(Text("…"), console=Console(), auto_refresh=False) as live:
        yield lambda jobs: live.update(_jobs_table(jobs), refresh=True)


def _jobs_table(jobs: Sequence[Job]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("job", "model", "status", "attempts", "age"):
        table.add_column(name, no_wrap=name == "job")
    for job in jobs:
        age = ago(job.created_at) if job.created_at else ""
        table.add_row(job.job_id, job.model, _status(job), str(job.attempts), age)
    return table


def print_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A table of JSON objects."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name.replace("_", " "))
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    _console().print(table)


@contextmanager
def transfer_bar(title: str) -> Generator[Transferred | None, None, None]:
    """A progress bar on standard error; nothing when that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda sent, total: progress.update(task, completed=sent, total=total)


def is_readable(content_type: str) -> bool:
    """Whether bytes of this type may go to a terminal."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in {"application/json", "application/x-ndjson"} or kind.endswith("+json")


def size(count: int | None) -> str:
    """Bytes for people."""
    if count is None:
        return "unknown size"
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":  # noqa: PLR2004  a binary thousand
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError  # the last unit returned


def span(seconds: float) -> str:
    """A duration for people."""
    for length, unit in UNITS:
        if seconds >= length * 2:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004  two digits tell enough


def ago(moment: datetime) -> str:
    """How long before now."""
    return span(max(0.0, (datetime.now(UTC) - moment).total_seconds()))


def _status(job: Job) -> Text:
    text = f"{job.status}, cancel requested" if job.cancel_requested and not job.terminal else job.status
    return Text(text, style=COLOURS.get(job.status, ""))


def _cell(value: Any) -> str:
    match value:
        case None | "" | False:
            return "-"
        case True:
            return "yes"
        case dict() | list():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)


def write_bytes(data: bytes) -> None:
    """To standard output as they are, with a newline for a terminal's sake."""
    _ = sys.stdout.buffer.write(data)
    if sys.stdout.isatty() and not data.endswith(b"\n"):
        _ = sys.stdout.buffer.write(b"\n")
    _ = sys.stdout.buffer.flush()
