"""Submit and drain: relayq's three transports beside raw redis-py and its peers, in interleaved rounds.

    python benchmarks/queues.py [--jobs 2000] [--rounds 3] [--only relayq,saq]

Each contender sends jobs of 200 bytes and then one warm worker of its own drains them, on a server of its own (AOF
everysec). The ratio is to the raw client of the same round; the median of the rounds counts. Peers live in environments
made from benchmarks/peers/*/requirements.txt, pinned with hashes; one that does not run is named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from redis import Redis

from queuecore.testing.servers import ValkeyProcess

HERE: Final = Path(__file__).parent
ENVIRONMENTS: Final = HERE / ".peers"
OURS: Final = ("raw", "relayq list", "relayq sortedset", "relayq stream")
PEERS: Final = ("huey", "taskiq", "dramatiq", "saq", "bullmq", "streaq", "celery", "arq", "rq")
LONGEST_SECONDS: Final = 60
IDLE_JOBS: Final = 100


class Figures(NamedTuple):
    """Of one contender in one round."""

    submit_per_second: float
    drain_per_second: float
    worker_us: float
    redis_us: float
    commands: float
    bytes_pending: float


def environment(name: str) -> Path:
    """The interpreter of a contender; a peer's environment is made when it is not there."""
    if name.split(maxsplit=1)[0] in {"raw", "relayq"}:
        return Path(sys.executable)
    place = ENVIRONMENTS / name
    python = place / "bin" / "python"
    if not python.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        _ = subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(place)], check=True)
        wanted = str(HERE / "peers" / name / "requirements.txt")
        command = [uv, "pip", "sync", "-q", "--require-hashes", wanted]
        _ = subprocess.run(command, check=True, env=os.environ | {"VIRTUAL_ENV": str(place)})
    return python


def start(name: str, what: str, url: str, jobs: int, **environ: str) -> subprocess.Popen[str]:
    """A driver; it prints one line of JSON before it ends."""
    kind, _, transport = name.partition(" ")
    driver = HERE / "peers" / kind / "driver.py"
    where = f"{url}#{transport}" if transport else url
    command = [str(environment(name)), str(driver), what, where, str(jobs)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(HERE / "peers")} | environ,
    )  # fmt: skip


def drive(name: str, what: str, url: str, jobs: int, **environ: str) -> dict[str, float]:
    """Run a driver; what it printed."""
    with start(name, what, url, jobs, **environ) as process:
        try:
            output, errors = process.communicate(timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{name} {what}: {(errors.strip().splitlines() or ['nothing was said'])[-1]}")
    return json.loads(lines[-1])


def measure(name: str, jobs: int) -> Figures:
    """One round of one contender, on a fresh server."""
    with ValkeyProcess(appendonly="everysec") as server, Redis.from_url(server.url) as redis:
        _ = drive(name, "submit", server.url, 1)  # scripts, groups and whatever else exists once
        empty = int(redis.info("memory")["used_memory"])
        submitted = drive(name, "submit", server.url, jobs)
        grown = int(redis.info("memory")["used_memory"]) - empty
        before = redis.info("cpu")
        commands = int(redis.info("stats")["total_commands_processed"])
        drained = drive(name, "work", server.url, jobs + 1)
        after = redis.info("cpu")
        cpu = sum(float(after[key]) - float(before[key]) for key in ("used_cpu_sys", "used_cpu_user"))
        asked = int(redis.info("stats")["total_commands_processed"]) - commands
    return Figures(
        jobs / submitted["seconds"],
        jobs / drained["seconds"],
        drained["cpu_seconds"] / jobs * 1e6,
        cpu / jobs * 1e6,
        asked / jobs,
        grown / jobs,
    )


def idle(name: str) -> tuple[float, float]:
    """(p50, p99) ms from just before a job is sent to where it begins to run, by a worker that waits for it."""
    with ValkeyProcess(appendonly="everysec") as server, tempfile.TemporaryDirectory() as directory:
        sent, ran = Path(directory, "sent"), Path(directory, "ran")
        _ = drive(name, "submit", server.url, 1)
        worker = start(name, "work", server.url, IDLE_JOBS + 1, BENCH_TIMES=str(ran))
        try:
            end = time.monotonic() + LONGEST_SECONDS
            while not ran.exists():  # the first job warms the worker
                if worker.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{name}: its worker runs nothing")
                time.sleep(0.05)
            _ = drive(name, "submit", server.url, IDLE_JOBS, BENCH_TIMES=str(sent), BENCH_PACE="0.02")
            _ = worker.communicate(timeout=LONGEST_SECONDS)
        finally:
            worker.kill()
            _ = worker.wait()
        times = [[int(line) for line in path.read_text("ascii").split()] for path in (sent, ran)]
    took = sorted((one - other) / 1e6 for other, one in zip(times[0], times[1][1:], strict=True))
    return took[len(took) // 2], took[-max(1, len(took) // 100)]


def table(rounds: dict[str, list[Figures]]) -> list[str]:
    """Markdown; rates as ratios to raw in the same round."""
    raw = rounds["raw"]
    lines = [
        "| no-op jobs | submit | drain | worker CPU us/job | Redis CPU us/job | commands/job | bytes/pending job |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, found in rounds.items():
        if not found:
            continue
        ratios = [
            statistics.median(getattr(one, rate) / getattr(base, rate) for one, base in zip(found, raw, strict=False))
            for rate in ("submit_per_second", "drain_per_second")
        ]
        rest = [statistics.median(column) for column in list(zip(*found, strict=True))[2:]]
        cells = [
            *(f"{ratio:.2f}" for ratio in ratios),
            *(f"{value:.0f}" for value in rest[:2]),
            f"{rest[2]:.1f}",
            f"{rest[3]:.0f}",
        ]
        if name == "raw":
            rates = [statistics.median(column) for column in list(zip(*found, strict=True))[:2]]
            cells[:2] = [f"1.00 ({rates[0]:,.0f}/s)", f"1.00 ({rates[1]:,.0f}/s)"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--jobs", type=int, default=2000)
    _ = parser.add_argument("--rounds", type=int, default=3)
    _ = parser.add_argument("--only", default="", help="contenders, separated by commas")
    options = parser.parse_args()
    chosen = [
        name for name in (*OURS, *PEERS) if not options.only or name.split()[0] in {"raw", *options.only.split(",")}
    ]
    rounds: dict[str, list[Figures]] = {name: [] for name in chosen}
    lost: dict[str, str] = {}
    for number in range(options.rounds):
        for name in chosen:
            if name in lost:
                continue
            try:
                rounds[name].append(measure(name, options.jobs))
            except (RuntimeError, subprocess.SubprocessError) as error:
                lost[name] = str(error)
                rounds[name].clear()
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print("\n".join(table(rounds)))
    print("\n| idle dispatch, ms | p50 | p99 |\n|---|---:|---:|")
    for name in chosen:
        if name in lost:
            continue
        try:
            p50, p99 = idle(name)
            print(f"| {name} | {p50:.2f} | {p99:.2f} |", flush=True)
        except (RuntimeError, subprocess.SubprocessError) as error:
            print(f"| {name} | not measured: {error} | |", flush=True)
    for name, why in lost.items():
        print(f"\n{name}: not measured ({why})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
