"""The point of relayq in half a minute: a relay is killed in the middle of its job, and the job still ends well.

Everything is real: the embedded stack, a WAV file, one SIGKILL. Each step is read from outside (status document, admin
port, the mock's journal, process ids), told as it happens, and checked at the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import anyio.to_thread
import httpx
import msgspec

from queuecore.clock import monotonic, sleep
from queuecore.settings import CommonSettings, describe
from relayq.admin import AdminClient
from relayq.client import AsyncClient
from relayq.dev.plan import Options, StackError
from relayq.dev.stack import Stack, running
from relayq.dev.wav import write_sweep
from relayq.errors import RelayqError
from relayq.job import Job

T = TypeVar("T")
MODEL: Final = "whisper-large-v3"
SERVICE_TYPE: Final = "transcription"
WAV_SECONDS: Final = 3.0
INFERENCE_SECONDS: Final = 4.0
KILL_AFTER_SECONDS: Final = 1.0
MOST_SECONDS: Final = 50.0
POLL_SECONDS: Final = 0.03
WIDTH: Final = 60
PREFIXES: Final = ("GATEWAY_", "RELAY_", "REAPER_", "MOCK_")


class DemoFailed(Exception):
    """Something that the demo is there to show did not happen."""


class Claim(NamedTuple):
    """Who runs the job, as the admin port says."""

    pid: int
    fence: int


class Story:
    """What happened when, told at once and drawn at the end."""

    def __init__(self) -> None:
        self.began = monotonic()
        self.marks: dict[str, float] = {}

    def tell(self, mark: str, text: str) -> None:
        """Note a moment and print it."""
        now = monotonic() - self.began
        self.marks[mark] = now
        print(f"{now * 1000:7.0f} ms  {text}", flush=True)

    def between(self, first: str, second: str) -> float:
        """Milliseconds from one mark to another."""
        return (self.marks[second] - self.marks[first]) * 1000

    def draw(self, rows: list[tuple[str, str, str, str]]) -> str:
        """One bar a row: name, from mark, to mark, how it ended."""
        whole = max(self.marks.values())
        lines: list[str] = []
        for name, first, last, ending in rows:
            start, end = (round(self.marks[mark] / whole * WIDTH) for mark in (first, last))
            lines.append(f"{name:>16} |{' ' * start}{'=' * max(1, end - start)}{ending}")
        scale = f"{'ms':>16} 0{f'{whole * 1000:.0f}':>{WIDTH}}"
        return "\n".join([*lines, scale])


class Demo:
    """One run on a stack that is up."""

    def __init__(self, stack: Stack, client: AsyncClient, admin: AdminClient, mock: httpx.AsyncClient) -> None:
        self._stack = stack
        self._client = client
        self._admin = admin
        self._mock = mock
        self._job: Job | None = None
        self._sha256 = ""

    async def play(self, wav: Path) -> str:
        """Everything from submission to proof; the closing words.

        Raises:
            DemoFailed: says what did not happen.
            TimeoutError: some step never came.
        """
        data = await anyio.to_thread.run_sync(wav.read_bytes)
        self._sha256 = hashlib.sha256(data).hexdigest()
        story = Story()
        job = await self._client.submit(
            wav,
            service_type=SERVICE_TYPE,
            model=MODEL,
            operation="transcribe",
            params={"mock_delay_seconds": INFERENCE_SECONDS},
        )
        story.tell("submit", f"{wav.name} ({len(data)} bytes) is submitted: job {job.job_id}")
        watch = asyncio.create_task(self._watch(job, story))
        try:
            first = await self._kill_mid_inference(job, story)
            second = await self._second_claim(job, story, first)
            final = await watch
        finally:
            _ = watch.cancel()
        output = io.BytesIO()
        _ = await self._client.result(final.job_id, output, service_type=SERVICE_TYPE)
        story.tell("result", f"result: {output.getvalue().decode()}")
        await self._check(final, output.getvalue(), data)
        picture = story.draw(
            [
                (f"relay {first.pid}", "claim 1", "kill", "X SIGKILL"),
                ("nobody", "kill", "claim 2", ""),
                (f"relay {second.pid}", "claim 2", "verdict", "completed"),
            ]
        )
        return (
            f"\n{picture}\n\n"
            f"The kill was noticed after {story.between('kill', 'reaped'):.0f} ms (the lease of 60 s was not waited "
            f"for), the job ran again {story.between('kill', 'claim 2'):.0f} ms after it.\n"
            f"Submitted once, claimed twice (fences {first.fence} and {second.fence}), reaped once, one verdict, "
            f"and the model saw the right {len(data)} bytes."
        )

    async def _watch(self, job: Job, story: Story) -> Job:
        """Follow the job by long polls until its verdict."""

        def changed(now: Job) -> None:
            if now.reaps and (self._job is None or not self._job.reaps):
                story.tell("reaped", "the reaper saw the relay's connection gone and gives the job back")
            self._job = now

        final = await self._client.wait(job.job_id, service_type=SERVICE_TYPE, on_change=changed)
        story.tell("verdict", f"verdict: {final.status}, attempts {final.attempts}, reaps {final.reaps}")
        return final

    async def _kill_mid_inference(self, job: Job, story: Story) -> Claim:
        claim = await self._until(lambda: self._claim(job))
        story.tell("claim 1", f"relay {claim.pid} claims it (fence {claim.fence}) and sends it to the model")
        if claim.pid not in self._stack.relays:
            raise DemoFailed(f"the claim's owner {claim.pid} is none of our relays {list(self._stack.relays)}")
        _ = await self._until(lambda: self._requests("running", 1))
        story.tell("inference 1", f"the model is at work; it will take {INFERENCE_SECONDS:g} s")
        await sleep(KILL_AFTER_SECONDS)
        strike(claim.pid)
        story.tell("kill", f"SIGKILL to relay {claim.pid}, in the middle of its job")
        _ = await self._until(lambda: self._requests("disconnected", 1))
        story.tell("cut", "the model lost its caller; that run's result is gone")
        return claim

    async def _second_claim(self, job: Job, story: Story, first: Claim) -> Claim:
        async def another() -> Claim | None:
            found = await self._claim(job)
            return found if found and found.fence > first.fence else None

        claim = await self._until(another)
        story.tell("claim 2", f"relay {claim.pid}, a new process, claims it (fence {claim.fence})")
        if claim.pid == first.pid:
            raise DemoFailed("the second claim is by the process that was killed")
        return claim

    async def _check(self, final: Job, result: bytes, data: bytes) -> None:
        while not (verdicts := await self._counted("GATEWAY_METRICS_PORT", "relayq_jobs_finished_total")):
            await sleep(POLL_SECONDS)  # the gateway counts a verdict when it takes it from the outbox
        requests = (await self._mock.get("/journal")).json()["requests"]
        states = [entry["state"] for entry in requests if (entry["file"] or {}).get("sha256") == self._sha256]
        text = str(msgspec.json.decode(result).get("text", ""))
        queue = await anyio.to_thread.run_sync(self._admin.queue, MODEL)
        facts = {
            "the job completed": (final.status, "completed"),
            "it was claimed twice": (final.attempts, 2),
            "it was reaped once": (final.reaps, 1),
            "the model was asked twice: one run cut off, one answered": (states, ["disconnected", "answered"]),
            "there is one verdict": (verdicts, 1),
            "the reaper counted one reap": (
                await self._counted("REAPER_METRICS_PORT", "gatewai_async_jobs_reaped_total"),
                1,
            ),
            "the model saw every byte": (f"{len(data)} bytes" in text and self._sha256 in text, True),
            "the queue is empty": (queue["depths"]["pending"] + queue["depths"]["processing"], 0),
        }
        wrong = [
            f"{fact}: expected {right!r}, found {found!r}" for fact, (found, right) in facts.items() if found != right
        ]
        if wrong:
            raise DemoFailed("; ".join(wrong))

    async def _claim(self, job: Job) -> Claim | None:
        queue = await anyio.to_thread.run_sync(self._admin.queue, MODEL)
        for claim in queue["claims"]:
            if claim["job_id"] == job.job_id:
                return Claim(int(str(claim["owner"]).split(":")[1]), int(claim["fence"]))
        return None

    async def _requests(self, state: str, count: int) -> bool:
        requests: list[dict[str, Any]] = (await self._mock.get("/journal")).json()["requests"]
        return sum(entry["state"] == state for entry in requests) >= count

    async def _until(self, probe: Callable[[], Awaitable[T | None]]) -> T:
        """The first true value of ``probe`` while the job is not over."""
        while True:
            found = await probe()
            if found:
                return found
            if self._job is not None and self._job.terminal:
                raise DemoFailed(f"the job was {self._job.status} before that was seen to happen")
            await sleep(POLL_SECONDS)

    async def _counted(self, port_variable: str, metric: str) -> float:
        """A counter of MODEL's, over its other labels, as the service of that metrics port shows it."""
        url = f"http://127.0.0.1:{self._stack.plan.environ[port_variable]}/metrics"
        lines = (await self._mock.get(url)).text.splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"{metric}{{") and f'model="{MODEL}"' in line
        )


def strike(pid: int) -> None:
    """SIGKILL: no handler runs, nothing is given back."""
    os.kill(pid, signal.SIGKILL)


def run_demo(data: Path | None, environ: Mapping[str, str]) -> int:
    """Play it; the exit code."""
    with tempfile.TemporaryDirectory(prefix="relayq-demo-") as temporary:
        try:
            directory = data or Path(temporary)
            directory.mkdir(parents=True, exist_ok=True)
            words = asyncio.run(_demo(directory, plain(environ)))
        except TimeoutError:
            words = f"not over within {MOST_SECONDS:g} s; the last line above is the last thing that happened"
        except (DemoFailed, StackError, RelayqError, httpx.HTTPError, OSError) as error:
            words = str(error) or type(error).__name__
        else:
            print(words, flush=True)
            return 0
        print(f"\nThe demo failed: {words}", file=sys.stderr, flush=True)
        return 1


async def _demo(data: Path, environ: Mapping[str, str]) -> str:
    wav = data / "tone.wav"
    await anyio.to_thread.run_sync(write_sweep, wav, WAV_SECONDS)
    print("Starting Redis, gateway, reaper and a mock of a model…", flush=True)
    options = Options(data=data, gateway_port=0, admin_port=0, max_relays=1)
    async with running(options, environ, _ignore, asyncio.Event()) as stack:
        plan = stack.plan
        async with (
            AsyncClient(plan.gateway_url) as client,
            httpx.AsyncClient(base_url=plan.mock_url, trust_env=False) as mock,
            asyncio.timeout(MOST_SECONDS),
        ):
            with AdminClient(plan.admin_url) as admin:
                return await Demo(stack, client, admin, mock).play(wav)


def plain(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without relayq's own variables: the demo shows the defaults."""
    ours = {variable for variable, _, _ in describe(CommonSettings)} | set(CommonSettings.aliases)
    return {name: text for name, text in environ.items() if name not in ours and not name.startswith(PREFIXES)}


def _ignore(_: str) -> None:
    """The stack's own reports; the demo tells the story itself."""


if __name__ == "__main__":
    sys.exit(run_demo(None, os.environ))
