"""The command's words and exit codes where no server is needed, or a stub of one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relayq import Job, NotFound, NotReachable, OutcomeUnknown, Throttled, UnexpectedAnswer, WaitTimeout
from relayq.command import app, exit_code
from relayq.command.exit_code import ExitCode, explain
from relayq.command.job import parse_params

RELAYQ = Path(sys.executable).with_name("relayq")
NOWHERE = "http://127.0.0.1:1"


def run(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([RELAYQ, *arguments], input=stdin, capture_output=True, timeout=50, check=False)


def test_errors_have_their_exit_code_and_say_what_to_do() -> None:
    job = Job(job_id="j", service_type="echo", status="processing")
    for error, code, words in (
        (NotReachable("http://x", "refused"), ExitCode.NOT_REACHABLE, "Is `relayq dev` running"),
        (OutcomeUnknown("broke"), ExitCode.UNKNOWN, "relayq jobs"),
        (WaitTimeout(job, 3), ExitCode.NO_VERDICT_YET, "relayq status j --wait"),
        (Throttled(429, "queue_full", "full", {}, 5.0), ExitCode.REFUSED, "Try again in 5 s"),
        (NotFound(404, "job_not_found", "no such job", {}, None), ExitCode.REFUSED, "relayq jobs"),
        (UnexpectedAnswer("not relayq"), ExitCode.REFUSED, "not relayq"),
    ):
        found, text = explain(error)
        assert found is code
        assert words in text


def test_nobody_at_the_address_is_exit_code_3(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    _ = file.write_bytes(b"x")
    done = run("submit", file, "--service", "echo", "--url", NOWHERE)
    assert done.returncode == 3
    assert b"cannot reach http://127.0.0.1:1" in done.stderr
    assert b"relayq dev" in done.stderr
    assert b"Traceback" not in done.stderr
    assert run("queues", "--admin-url", NOWHERE).returncode == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "no-such-file", "--service", "echo"),
        ("submit", __file__, "--service", "echo", "--param", "novalue"),
        ("submit", __file__, "--service", "echo", "--output", "x"),
        ("submit", __file__, "--service", "echo", "--header", "nocolon"),
        ("submit", __file__, "--service", "echo", "--url", "localhost:8080"),
        ("deadletter", "redrive", "echo"),
        ("deadletter", "redrive", "echo", "someid", "--all"),
        ("status",),
        ("frobnicate",),
        ("dev", "--max-relays", "-1"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 2, done.output


def test_help_names_every_command_and_the_exit_codes() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for name in ("dev", "demo", "submit", "status", "result", "cancel", "jobs", "models", "queues", "pause", "resume",
                 "purge", "deadletter", "doctor", "supervise"):  # fmt: skip
        assert f" {name} " in text
    assert "3 not reachable" in text


def test_a_param_is_json_when_it_reads_as_json_and_text_otherwise() -> None:
    found = parse_params(["a=1", "b=true", "c=de", 'd="7"', "e=", "f=x=y", "g=007", 'h={"k":[1]}', "i=NaN"])
    assert found == {
        "a": 1, "b": True, "c": "de", "d": "7", "e": "", "f": "x=y", "g": "007", "h": {"k": [1]}, "i": "NaN",
    }  # fmt: skip


# -- against a stub of a server ---------------------------------------------------------------------------------

JOB = "01890a5d-ac96-774b-bcce-b302099a8057"
MODELS = {
    "models": [
        {"name": "echo", "service_type": "echo", "operations": ["echo"]},
        {"name": "whisper", "service_type": "transcription", "operations": ["transcribe"]},
    ]
}


@contextmanager
def stub(**job: Any) -> Generator[tuple[str, list[str]], None, None]:
    """A server that has one job, ``job``; (its URL, the request lines it saw)."""
    seen: list[str] = []
    document = {"job_id": JOB, "service_type": "transcription", "model": "whisper", "status": "completed", **job}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def do_DELETE(self) -> None:
            self.answer()

        def answer(self) -> None:
            seen.append(f"{self.command} {self.path}")
            _ = self.rfile.read(int(self.headers.get("content-length", "0")))
            if self.path == "/models":
                self.send(200, MODELS)
            elif self.path.endswith("/result"):
                self.send(200, {"text": "hello"})
            elif self.path.startswith("/jobs/transcription"):
                self.send(202 if self.command == "POST" else 200, document)
            else:
                self.send(404, {"code": "job_not_found", "detail": "no such job"}, "application/problem+json")

        def send(self, status: int, value: object, content_type: str = "application/json") -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            _ = self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's signature
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", seen
        finally:
            server.shutdown()
            thread.join()


def test_submit_prints_the_id_alone_so_that_a_script_can_take_it() -> None:
    with stub(status="pending") as (url, seen):
        done = run("submit", "-", "--model", "whisper", "--url", url, stdin=b"data")
    assert (done.returncode, done.stdout.decode()) == (0, f"{JOB}\n")
    assert seen == ["GET /models", "POST /jobs/transcription"]


def test_submit_without_a_choice_lists_what_there_is() -> None:
    with stub() as (url, _):
        done = run("submit", __file__, "--url", url)
    assert done.returncode == 2
    assert b"--service echo --model echo" in done.stderr


def test_wait_gives_the_result_and_its_exit_code(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    facts = {"content_type": "application/json", "size": 17, "sha256": ""}
    with stub(result=facts) as (url, _):
        shown = run("submit", __file__, "--service", "transcription", "--wait", "--url", url)
        stored = run("submit", __file__, "--service", "transcription", "--wait", "--output", out, "--url", url)
    assert (shown.returncode, json.loads(shown.stdout)) == (0, {"text": "hello"})
    assert (stored.returncode, stored.stdout) == (0, b"")
    assert json.loads(out.read_text("utf-8")) == {"text": "hello"}
    assert list(tmp_path.iterdir()) == [out], "no partial file is left"


def test_another_verdict_is_exit_code_1_with_its_cause() -> None:
    error = {"code": "inference_error", "message": "the model said no", "http_status": 500}
    with stub(status="failed", error=error) as (url, _):
        waited = run("submit", __file__, "--service", "transcription", "--wait", "--json", "--url", url)
        fetched = run("result", JOB, "--url", url)
        shown = run("status", JOB, "--url", url)
    assert waited.returncode == fetched.returncode == 1
    assert json.loads(waited.stdout)["status"] == "failed"
    assert b"inference_error: the model said no" in waited.stderr
    assert shown.returncode == 0
    assert b"inference_error (HTTP 500)" in shown.stdout


def test_too_early_is_exit_code_6() -> None:
    with stub(status="processing") as (url, _):
        assert run("result", JOB, "--url", url).returncode == 6
        assert run("status", JOB, "--wait", "--timeout", "0", "--url", url).returncode == 6


def test_an_unknown_job_is_exit_code_4() -> None:
    with stub() as (url, seen):
        done = run("status", JOB, "--service", "echo", "--url", url)
    assert done.returncode == 4
    assert b"relayq jobs" in done.stderr
    assert seen == [f"GET /jobs/echo/{JOB}"]


def test_the_documented_exit_codes_are_the_real_ones() -> None:
    page = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text("utf-8")
    table = [line for line in page.splitlines() if re.match(r"\| \d+ \|", line)]
    assert table == [line for line in (exit_code.__doc__ or "").splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(line.split("|")[1]) for line in table] == sorted(ExitCode)
