"""submit, status, result, cancel, jobs, models."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TypeAlias

import typer

from relayq.client import Client
from relayq.command import screen
from relayq.command.connection import DEFAULT_URL, QUICK_SECONDS, ApiKey, AsJson, Headers, Url, open_client
from relayq.command.exit_code import ExitCode, leave, say
from relayq.download import Download
from relayq.flows import new_idempotency_key
from relayq.job import Job, Model

PATIENT_SECONDS: Final = 60.0
READABLE_BYTES: Final = 65_536
STANDARD: Final = "-"
CHUNK_BYTES: Final = 1_048_576

JobId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)]
Service: TypeAlias = Annotated[
    str | None,
    typer.Option("--service", "-s", help="The job's service type; found out when left out.", show_default=False),
]
Pipeline: TypeAlias = Annotated[
    str | None,
    typer.Option("--pipeline", "-P", help="The pipeline whose run it is; found out when left out.", show_default=False),
]
Output: TypeAlias = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Where the result goes; - = standard output.")
]
Timeout: TypeAlias = Annotated[
    float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="The longest wait; for ever by default.")
]


def submit(
    file: Annotated[str, typer.Argument(help="The file; - = standard input.", show_default=False)],
    *,
    service: Annotated[
        str | None,
        typer.Option("--service", "-s", help="Service type; found from --model when left out.", show_default=False),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option("--pipeline", "-P", help="Go through this pipeline's stages instead.", show_default=False),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="One of `relayq models`.")] = None,
    operation: Annotated[str | None, typer.Option("--operation", help="What the model is to do.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param", "-p", metavar="NAME=VALUE", help="For the model; VALUE is JSON when it reads as JSON, else text."
        ),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(
            "--priority",
            help="true; normal, high or critical for a sorted set or pipeline, normal or high for a stream.",
        ),
    ] = None,
    not_before: Annotated[str | None, typer.Option("--not-before", metavar="TIME", help="RFC 3339.")] = None,
    deadline: Annotated[str | None, typer.Option("--deadline", metavar="TIME", help="RFC 3339.")] = None,
    ordering_key: Annotated[
        str | None, typer.Option("--ordering-key", help="Jobs of one key run one after the other.")
    ] = None,
    callback_url: Annotated[str | None, typer.Option("--callback-url", help="Told about the verdict.")] = None,
    content_class: Annotated[
        str | None, typer.Option("--content-class", help="api-docs or code, of a queue ordered by priority.")
    ] = None,
    dedup_key: Annotated[
        str | None, typer.Option("--dedup-key", help="The item's name, such as its URL: one item, one job.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Take the item of --dedup-key again.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run although a result of the same request is kept.")] = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", help="A repeat with the same key is the same job; made anew when left out."),
    ] = None,
    filename: Annotated[str | None, typer.Option("--filename", help="Another name than the file's own.")] = None,
    content_type: Annotated[
        str | None, typer.Option("--content-type", help="Another media type than the name suggests.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the verdict.")] = False,
    timeout: Timeout = None,
    output: Output = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    header: Headers = None,
) -> None:
    """Send a file as a job. Prints the job's id; with --wait its result, or writes it to --output.

    Exit codes: 0 accepted (with --wait: completed), 1 another verdict, 2 usage, 3 not reachable, 4 refused,
    5 broken on the way, 6 --timeout is over.
    """
    if output is not None and not wait:
        leave(ExitCode.USAGE, "--output needs --wait; later it is: relayq result ID --output FILE")
    key = new_idempotency_key() if idempotency_key is None else idempotency_key
    with open_client(url, api_key, header, patience_seconds=QUICK_SECONDS) as client:
        service_type = None if pipeline else service or _service_type(client.models(), model)
        source: str | BinaryIO = sys.stdin.buffer if file == STANDARD else file
        name = filename or ("stdin" if file == STANDARD else Path(file).name)
        try:
            with screen.transfer_bar(f"sending {name}") as progress:
                job = client.submit(
                    source,
                    service_type=service_type,
                    pipeline=pipeline,
                    model=model,
                    operation=operation,
                    params=parse_params(param or []),
                    priority=priority,
                    not_before=not_before,
                    deadline=deadline,
                    ordering_key=ordering_key,
                    callback_url=callback_url,
                    content_class=content_class,
                    dedup_key=dedup_key,
                    force=force,
                    fresh=fresh,
                    idempotency_key=key,
                    filename=name,
                    content_type=content_type,
                    progress=progress,
                )
        except (OSError, ValueError) as error:
            leave(ExitCode.USAGE, f"{file}: {error.strerror if isinstance(error, OSError) else error}")
    if not wait:
        if as_json:
            screen.print_json(job.raw)
        else:
            print(job.job_id, flush=True)
            whose = _whose(job)
            say(f"{whose and f'{whose} is '}{job.status}; next: relayq status {job.job_id} --wait")
            if key and not whose:  # the answer of another submission's job leaves the key free
                say(f"the same again is the same job, with --idempotency-key {key}")
        return
    with open_client(url, api_key, header, patience_seconds=PATIENT_SECONDS) as client:
        _finish(client, job, timeout, output, as_json=as_json)


def status(
    job_id: JobId,
    *,
    service: Service = None,
    pipeline: Pipeline = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the verdict.")] = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    header: Headers = None,
) -> None:
    """Show one job. With --wait: exit code 0 when it completed, 1 after another verdict, 6 when --timeout is over."""
    patience = PATIENT_SECONDS if wait else QUICK_SECONDS
    with open_client(url, api_key, header, patience_seconds=patience) as client:
        job = client.status(job_id, service_type=service, pipeline=pipeline)
        if wait and not job.terminal:
            job = _wait(client, job, timeout)
    if as_json:
        screen.print_json(job.raw)
    else:
        screen.print_job(job)
    if wait and job.status != "completed":
        raise typer.Exit(ExitCode.BAD_VERDICT)


def result(
    job_id: JobId,
    *,
    output: Output = None,
    service: Service = None,
    pipeline: Pipeline = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    header: Headers = None,
) -> None:
    """Fetch a result; a broken download goes on where it stopped. Exit code 1: there is none; 6: no verdict yet."""
    with open_client(url, api_key, header, patience_seconds=PATIENT_SECONDS) as client:
        job = client.status(job_id, service_type=service, pipeline=pipeline)
        if not job.terminal:
            leave(ExitCode.NO_VERDICT_YET, f"the job is {job.status}; wait for it: relayq status {job_id} --wait")
        if job.status != "completed":
            leave(ExitCode.BAD_VERDICT, _no_result(job))
        media_type = job.result.content_type if job.result else ""
        if output is None and sys.stdout.isatty() and not screen.is_readable(media_type):
            leave(ExitCode.USAGE, f"the result is {media_type}: give --output FILE")
        _fetch(client, job, output or STANDARD)


def cancel(
    job_id: JobId,
    *,
    service: Service = None,
    pipeline: Pipeline = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    header: Headers = None,
) -> None:
    """Cancel a job: a waiting one at once, a running one within seconds."""
    with open_client(url, api_key, header, patience_seconds=QUICK_SECONDS) as client:
        job = client.cancel(job_id, service_type=service, pipeline=pipeline)
    if as_json:
        screen.print_json(job.raw)
    elif job.status == "cancelled":
        say("cancelled")
    else:
        say(f"it runs; its relay was told to stop. Watch it: relayq status {job.job_id} --wait")


def jobs(
    *,
    service: Annotated[str | None, typer.Option("--service", "-s", help="Only this service type.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only this model.")] = None,
    wanted: Annotated[str | None, typer.Option("--status", help="Only this status.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One status document a line.")] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    header: Headers = None,
) -> None:
    """List jobs, newest first."""
    with open_client(url, api_key, header, patience_seconds=QUICK_SECONDS) as client:
        found = client.jobs(service_type=service, model=model, status=wanted, page_size=min(limit, 100))
        if as_json:
            for job in islice(found, limit):
                screen.print_json(job.raw)
        else:
            screen.print_jobs(list(islice(found, limit)))


def models(as_json: AsJson = False, url: Url = DEFAULT_URL, api_key: ApiKey = None, header: Headers = None) -> None:
    """List the server's models, their limits and how busy they are."""
    with open_client(url, api_key, header, patience_seconds=QUICK_SECONDS) as client:
        found = client.models()
    if as_json:
        screen.print_json([model.raw for model in found])
        return
    rows = [
        {**model.raw, "operations": ", ".join(model.raw.get("operations", [])), **model.raw.get("queue", {})}
        for model in found
    ]
    columns = ("name", "service_type", "operations", "max_upload_bytes", "pending", "processing", "paused")
    screen.print_rows(columns, rows)


def parse_params(texts: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` pairs; a value that reads as JSON is that JSON value, any other is text."""
    params: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            leave(ExitCode.USAGE, f"--param {text!r}: give NAME=VALUE")
        try:
            params[name] = json.loads(value, parse_constant=str)
        except ValueError:
            params[name] = value
    return params


def _service_type(found: Sequence[Model], name: str | None) -> str:
    types = list(dict.fromkeys(model.service_type for model in found if name in {None, model.name}))
    if len(types) != 1:
        known = "\n".join(f"  --service {model.service_type} --model {model.name}" for model in found)
        what = "name a --service or a --model" if name is None else f"--model {name!r} is not one of this server's"
        leave(ExitCode.USAGE, f"{what}:\n{known}")
    return types[0]


def _finish(client: Client, job: Job, timeout: float | None, output: str | None, *, as_json: bool) -> None:
    whose = _whose(job)
    say(f"job {job.job_id}{whose and f', {whose}'}")
    job = _wait(client, job, timeout)
    if as_json:
        screen.print_json(job.raw)
    if job.status != "completed":
        leave(ExitCode.BAD_VERDICT, _no_result(job))
    facts = job.result
    if output is not None:
        _fetch(client, job, output)
    elif not as_json and facts and screen.is_readable(facts.content_type) and (facts.size or 0) <= READABLE_BYTES:
        _fetch(client, job, STANDARD)
    elif not as_json:
        say(f"next: relayq result {job.job_id} --output FILE")


def _wait(client: Client, job: Job, timeout: float | None) -> Job:
    shown = ""

    def tell(now: Job) -> None:
        nonlocal shown
        attempt = f", attempt {now.attempts}" if now.attempts > 1 else ""
        text = f"{now.status}{attempt}"
        if text != shown:
            say(text)
            shown = text

    try:
        return client.wait(
            job.job_id, service_type=job.service_type, pipeline=job.pipeline, timeout_seconds=timeout, on_change=tell
        )
    except KeyboardInterrupt:
        leave(ExitCode.INTERRUPTED, f"the job goes on; see: relayq status {job.job_id}, relayq cancel {job.job_id}")


def _fetch(client: Client, job: Job, output: str) -> None:
    if output == STANDARD:
        _ = client.result(job.job_id, sys.stdout.buffer, service_type=job.service_type, pipeline=job.pipeline)
        _ = sys.stdout.buffer.flush()
        return
    target = Path(output)
    part = target.with_name(f"{target.name}.{job.job_id}.part")
    try:
        with (
            part.open("r+b" if part.exists() else "w+b") as file,
            screen.transfer_bar(f"fetching {target.name}") as progress,
        ):
            download = Download(file, progress)
            while chunk := file.read(CHUNK_BYTES):
                download.adopt(chunk)
            facts = client.result(job.job_id, download, service_type=job.service_type, pipeline=job.pipeline)
        _ = part.replace(target)
    except OSError as error:
        leave(ExitCode.USAGE, f"--output {output}: {error.strerror}")
    say(f"{output}: {screen.size(facts.size)} of {facts.content_type}")


def _no_result(job: Job) -> str:
    why = f": {job.error.code}: {job.error.message}" if job.error else ""
    return f"the job is {job.status}{why}"


def _whose(job: Job) -> str:
    """Of a submission's answer: which other submission made this job; "" when this one did."""
    if job.deduplicated:
        return "this item's first job (--force takes it again)"
    return "an equal request's job (--fresh runs it anew)" if job.reused else ""
