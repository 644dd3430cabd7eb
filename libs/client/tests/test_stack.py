"""`relayq dev` for real: every process, driven with the command, ended in every way."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from relayq import AdminClient, Client
from relayq.dev.plan import read_environment
from relayq.dev.wav import write_sweep

T = TypeVar("T")
RELAYQ = Path(sys.executable).with_name("relayq")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def until(probe: Callable[[], T], within: float = 20) -> T:
    end = time.monotonic() + within
    while not (found := probe()):
        assert time.monotonic() < end, f"still {found!r} after {within} s"
        time.sleep(0.05)
    return found


class Dev:
    """A running `relayq dev`."""

    def __init__(self, process: subprocess.Popen[bytes], data: Path, output: Path) -> None:
        self.process = process
        self.data = data
        self._output = output
        _ = until(lambda: "relayq is ready" in self.output or process.poll() is not None, 60)
        assert process.poll() is None, self.output
        self.environ = read_environment(data)
        self.client = Client(self.environ["RELAYQ_URL"])
        self.admin = AdminClient(self.environ["RELAYQ_ADMIN_URL"])

    @property
    def output(self) -> str:
        return self._output.read_text("utf-8")

    def children(self) -> dict[str, list[psutil.Process]]:
        """Running children by what they are."""
        found: dict[str, list[psutil.Process]] = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                words = child.cmdline()
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            if words:
                kind = "redis" if "valkey-server" in words[0] else words[-1]
                found.setdefault(kind, []).append(child)
        return found

    def relays(self) -> list[int]:
        return [child.pid for child in self.children().get("relay", [])]

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """The command against this stack."""
        environ = {**os.environ, **self.environ}
        return subprocess.run(
            [RELAYQ, *arguments], env=environ, capture_output=True, text=True, timeout=60, check=False
        )


@contextmanager
def dev(data: Path, *options: str, **environ: str) -> Generator[Dev, None, None]:
    output = data.with_name(f"{data.name}-{time.monotonic_ns()}.out")
    argv = [RELAYQ, "dev", "--gateway-port", "0", "--admin-port", "0", "--data", data, *options]
    with output.open("ab") as sink:
        process = subprocess.Popen(argv, env={**os.environ, **environ}, stdout=sink, stderr=sink)
    started = None
    try:
        started = Dev(process, data, output)
        yield started
    finally:
        if started is not None:
            started.client.close()
            started.admin.close()
        if process.poll() is None:
            process.terminate()
        _ = process.wait(30)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Dev, None, None]:
    with dev(tmp_path_factory.mktemp("stack") / "my data 100%#", "--max-relays", "2") as running:
        yield running


@pytest.fixture(scope="module")
def wav(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wav") / "tone.wav"
    write_sweep(path, 2)
    return path


def test_a_file_becomes_a_result_with_one_command(stack: Dev, wav: Path, tmp_path: Path) -> None:
    out = tmp_path / "text.json"
    done = stack.run("submit", wav, "--model", "whisper-large-v3", "--wait", "--output", out)
    assert done.returncode == 0, done.stderr
    text = json.loads(out.read_text("utf-8"))["text"]
    assert f"{wav.stat().st_size} bytes" in text
    assert hashlib.sha256(wav.read_bytes()).hexdigest() in text
    assert "2.000 s at 16000 Hz" in text


def test_a_job_id_is_all_that_the_other_commands_need(stack: Dev, wav: Path) -> None:
    job_id = stack.run("submit", wav, "--service", "echo", "--param", "language=de").stdout.strip()
    assert stack.run("status", job_id, "--wait").returncode == 0
    document = json.loads(stack.run("status", job_id, "--json").stdout)
    assert (document["job_id"], document["status"]) == (job_id, "completed")
    result = json.loads(stack.run("result", job_id).stdout)
    assert ["language", "de"] in result["fields"]
    assert stack.run("cancel", job_id).returncode == 4, "it has a verdict already"
    listed = [json.loads(line)["job_id"] for line in stack.run("jobs", "--json").stdout.splitlines()]
    assert job_id in listed


def test_a_failed_job_is_exit_code_1_and_says_why(stack: Dev, wav: Path) -> None:
    done = stack.run("submit", wav, "--service", "echo", "--param", "mock_status=418", "--wait")
    assert done.returncode == 1
    assert "inference_error" in done.stderr


def test_a_running_job_is_cancelled(stack: Dev, wav: Path) -> None:
    job_id = stack.run("submit", wav, "--service", "echo", "--param", "mock_hang=true").stdout.strip()
    _ = until(lambda: stack.client.status(job_id, service_type="echo").status == "processing")
    assert stack.run("cancel", job_id).returncode == 0
    job = stack.client.wait(job_id, service_type="echo", timeout_seconds=20)
    assert job.status == "cancelled"


def test_a_paused_queue_keeps_its_jobs_and_a_purge_ends_them(stack: Dev, wav: Path) -> None:
    assert stack.run("pause", "embedder").returncode == 0
    try:
        value = json.dumps({"input": "hello"}).encode()
        job = stack.client.submit(value, service_type="embeddings", filename="a.json", content_type="application/json")
        (row,) = [queue for queue in stack.admin.queues() if queue["model"] == "embedder"]
        assert (row["depths"]["paused"], row["depths"]["pending"]) == (1, 0)
        assert "embedder" in stack.run("queues").stdout
        assert stack.run("purge", "embedder", "--yes").stderr == "1 jobs cancelled\n"
        purged = stack.client.wait(job.job_id, service_type="embeddings", timeout_seconds=10)
        assert (purged.status, purged.error.code if purged.error else "") == ("cancelled", "purged")
    finally:
        assert stack.run("resume", "embedder").returncode == 0


def test_doctor_finds_a_stack_of_its_own_in_order(stack: Dev) -> None:
    done = stack.run("doctor", "--data", stack.data, "--json")
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout
    assert {finding["check"] for finding in findings} >= {
        "redis",
        "persistence",
        "reaper",
        "store",
        "gateway",
        "queues",
    }


def test_relays_are_as_many_as_open_jobs_up_to_the_maximum_and_none_when_idle(stack: Dev, wav: Path) -> None:
    _ = until(lambda: not stack.relays())
    jobs = [stack.client.submit(wav, service_type="echo", params={"mock_delay_seconds": 2}).job_id for _ in range(4)]
    seen: set[int] = set()
    most = 0
    while not all(stack.client.status(job, service_type="echo").terminal for job in jobs):
        now = stack.relays()
        seen.update(now)
        most = max(most, len(now))
        time.sleep(0.05)
    assert most == 2
    assert len(seen) == 4, "each job has a process of its own"
    _ = until(lambda: not stack.relays())
    assert {stack.client.status(job, service_type="echo").attempts for job in jobs} == {1}


def test_memory_does_not_grow_with_the_file(stack: Dev, tmp_path: Path) -> None:
    big = tmp_path / "big.bin"
    with big.open("wb") as file:
        _ = file.truncate(256 << 20)
    out = tmp_path / "out.json"
    program = (
        "import resource, sys; from relayq import Client; c = Client(sys.argv[1]); "
        "c.submit(b'x', service_type='echo'); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        "j = c.submit(sys.argv[2], service_type='echo', params={'mock_response_bytes': 256 << 20}); "
        "c.wait(j.job_id, service_type='echo'); f = open(sys.argv[3], 'w+b'); "
        "c.result(j.job_id, f, service_type='echo'); f.close(); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    argv = [sys.executable, "-c", program, stack.environ["RELAYQ_URL"], str(big), str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16 << 10, "KiB"
    assert out.stat().st_size == 256 << 20


def test_services_that_die_come_back_on_the_same_data(stack: Dev, wav: Path) -> None:
    job = stack.client.submit(wav, service_type="transcription", model="whisper-large-v3", operation="transcribe")
    _ = stack.client.wait(job.job_id, service_type="transcription", timeout_seconds=30)
    for kind in ("redis", "gateway", "mock_inference", "reaper"):
        (before,) = stack.children()[kind]
        before.kill()
        after = until(
            lambda kind=kind, before=before: [c for c in stack.children().get(kind, []) if c.pid != before.pid]
        )
        assert len(after) == 1
    assert stack.output.count("killed by SIGKILL") >= 4
    done = stack.run("submit", wav, "--service", "echo", "--wait")
    assert done.returncode == 0, done.stderr
    again = stack.client.status(job.job_id, service_type="transcription")
    assert again.status == "completed", "Redis came back with what it had"


def test_a_second_stack_on_the_same_data_is_refused_in_words(stack: Dev) -> None:
    argv = [RELAYQ, "dev", "--gateway-port", "0", "--admin-port", "0", "--data", stack.data]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert f"pid {stack.process.pid}" in done.stderr
    assert "--data" in done.stderr
    assert stack.client.models(), "and the first one is unharmed"


def test_a_misspelt_variable_stops_the_start_and_is_named(tmp_path: Path) -> None:
    argv = [RELAYQ, "dev", "--gateway-port", "0", "--admin-port", "0", "--data", tmp_path / "d"]
    environ = {**os.environ, "GATEWAY_PROT": "8080"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "GATEWAY_PROT" in done.stderr
    assert "gateway did not start" in done.stderr


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=0)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def _running_job(stack: Dev, wav: Path, seconds: float) -> str:
    job_id = stack.client.submit(wav, service_type="echo", params={"mock_delay_seconds": seconds}).job_id
    _ = until(lambda: stack.client.status(job_id, service_type="echo").status == "processing")
    return job_id


def test_ctrl_c_lets_the_running_job_end_and_leaves_no_process(tmp_path: Path, wav: Path) -> None:
    data = tmp_path / "data"
    with dev(data, "--max-relays", "1") as first:
        job_id = _running_job(first, wav, 2)
        family = psutil.Process(first.process.pid).children(recursive=True)
        assert len(family) == 5
        first.process.send_signal(signal.SIGINT)
        assert first.process.wait(30) == 0
        assert _alive(family) == []
        assert "Traceback" not in first.output
    with dev(data, "--max-relays", "0") as second:
        job = second.client.status(job_id, service_type="echo")
        assert (job.status, job.reaps) == ("completed", 0), "queue and results are kept"
        waiting = second.client.submit(wav, service_type="echo")
        time.sleep(1)  # the scaler would have looked four times
        assert second.relays() == []
        assert second.client.status(waiting.job_id, service_type="echo").status == "pending"


def test_sigkill_leaves_no_process_either(tmp_path: Path, wav: Path) -> None:
    with dev(tmp_path / "data", "--max-relays", "1") as stack:
        _ = _running_job(stack, wav, 60)
        family = psutil.Process(stack.process.pid).children(recursive=True)
        assert len(family) == 5
        stack.process.kill()
        _ = until(lambda: not _alive(family), 5)


def test_a_wait_goes_on_through_a_restart_of_the_gateway(stack: Dev, wav: Path) -> None:
    job_id = _running_job(stack, wav, 3)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stack.client.wait, job_id, service_type="echo", timeout_seconds=60)
        (gateway,) = stack.children()["gateway"]
        gateway.kill()
        assert waiting.result(60).status == "completed"


def test_dead_letters_are_listed_redriven_and_dropped(tmp_path: Path, wav: Path) -> None:
    with dev(tmp_path / "data", "--max-relays", "1", MAX_REAP_ATTEMPTS="0") as stack:
        for verb in ("redrive", "drop"):
            job_id = _running_job(stack, wav, 3)
            (relay,) = stack.relays()
            os.kill(relay, signal.SIGKILL)
            job = stack.client.wait(job_id, service_type="echo", timeout_seconds=30)
            assert (job.status, job.error.code if job.error else "") == ("failed", "worker_lost")
            (letter,) = stack.run("deadletter", "list", "echo", "--json").stdout.splitlines()
            assert json.loads(letter)["job_id"] == job_id
            assert job_id in stack.run("deadletter", "list", "echo").stdout
            done = stack.run("deadletter", verb, "echo", job_id)
            assert done.returncode == 0, done.stderr
            assert stack.run("deadletter", "list", "echo", "--json").stdout == ""
            if verb == "redrive":
                again = stack.client.wait(job_id, service_type="echo", timeout_seconds=30)
                assert again.status == "completed"


def test_a_supervised_relay_runs_each_job_in_a_fresh_process(tmp_path: Path, wav: Path) -> None:
    with dev(tmp_path / "data", "--max-relays", "0") as stack:
        environ = {**os.environ, **stack.environ, "RELAY_MODEL": "echo", "RELAY_METRICS_PORT": "0"}
        argv = [RELAYQ, "supervise", "--", sys.executable, "-m", "relay"]
        log = tmp_path / "relay.log"
        with log.open("wb") as sink, subprocess.Popen(argv, env=environ, stdout=sink, stderr=sink) as supervisor:
            for _ in range(2):
                job = stack.client.submit(wav, service_type="echo")
                assert stack.client.wait(job.job_id, service_type="echo", timeout_seconds=40).status == "completed"
            supervisor.terminate()
            assert supervisor.wait(30) == 0
        lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
        workers = {line["worker"] for line in lines if line["event"] == "service.started"}
        assert len(workers) >= 2
