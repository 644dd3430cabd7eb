"""The command's words and exit codes where no server is needed, or a stub of one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.keyfile import KeyFile
from queuecore.crypto.keyring import KeyRing
from relayq import Job, NotFound, NotReachable, OutcomeUnknown, Throttled, UnexpectedAnswer, WaitTimeout
from relayq.command import app, exit_code
from relayq.command.exit_code import ExitCode, explain
from relayq.command.job import parse_params

RELAYQ = Path(sys.executable).with_name("relayq")
NOWHERE = "http://127.0.0.1:1"


EVENTS = ("status", "done")


def run(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([RELAYQ, *arguments], input=stdin, capture_output=True, timeout=50, check=False)


def test_errors_have_their_exit_code_and_say_what_to_do() -> None:
    job = Job(job_id="j", service_type="echo", status="processing")
    keyed = OutcomeUnknown("broke")
    keyed.idempotency_key = "k1"
    for error, code, words in (
        (NotReachable("http://x", "refused"), ExitCode.NOT_REACHABLE, "Is `relayq dev` running"),
        (OutcomeUnknown("broke"), ExitCode.UNKNOWN, "relayq jobs"),
        (keyed, ExitCode.UNKNOWN, "--idempotency-key k1: there will be one job"),
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
                 "purge", "deadletter", "cache", "doctor", "supervise", "watch", "events", "completion", "keygen"):  # fmt: skip
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
    ],
    "pipelines": [{"name": "ingest", "stages": ["chunk", "embed"]}],
}
RUN = "01890a5d-ac96-774b-bcce-b302099a8058"
STAGES = [
    {"stage": "chunk", "status": "completed", "attempts": 2, "queued_at": "2026-01-31T12:00:00Z",
     "started_at": "2026-01-31T12:00:03Z", "finished_at": "2026-01-31T12:00:05Z"},
    {"stage": "embed", "status": "waiting", "attempts": 0, "queued_at": None, "started_at": None, "finished_at": None},
]  # fmt: skip


@contextmanager
def stub(
    *, x_cache: str | None = None, sent: list[dict[str, str]] | None = None, **job: Any
) -> Generator[tuple[str, list[str]], None, None]:
    """A server that has one job, ``job``; (its URL, the request lines it saw).

    A submission is answered with this ``X-Cache``; its fields and its ``Cache-Control`` are added to ``sent``.
    """
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
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            if self.command == "POST" and sent is not None:
                fields = re.findall(r'name="(\w+)"\r\n\r\n(.*)\r\n', body.decode())
                sent.append(dict(fields) | {"cache-control": self.headers.get("cache-control", "")})
            if self.path == "/models":
                self.send(200, MODELS)
            elif self.path.endswith("/events"):
                text = "".join(
                    f"event: {name}\nid: {at}\ndata: {json.dumps(document)}\n\n" for at, name in enumerate(EVENTS)
                )
                self.send(200, text, "text/event-stream")
            elif self.path.startswith("/jobs?"):
                self.send(200, {"jobs": [document], "cursor": None})
            elif self.path.endswith("/result"):
                self.send(200, {"text": "hello"})
            elif self.path.startswith("/cache"):
                self.send(200, {"removed": 7})
            elif self.path.startswith("/pipelines/ingest"):
                run = {"job_id": RUN, "pipeline": "ingest", "stage": "chunk", "stages": STAGES}
                self.send(202 if self.command == "POST" else 200, document | run)
            elif self.path.startswith("/jobs/transcription") and RUN not in self.path:
                self.send(202 if self.command == "POST" else 200, document)
            else:
                self.send(404, {"code": "job_not_found", "detail": "no such job"}, "application/problem+json")

        def send(self, status: int, value: object, content_type: str = "application/json") -> None:
            body = (value if isinstance(value, str) else json.dumps(value)).encode()
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            if x_cache and self.command == "POST":
                self.send_header("x-cache", x_cache)
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


def test_a_run_is_submitted_to_its_pipeline_and_found_by_its_id_alone() -> None:
    with stub(status="processing") as (url, seen):
        sent = run("submit", "-", "--pipeline", "ingest", "--url", url, stdin=b"data")
        shown = run("status", RUN, "--url", url)
        named = run("cancel", RUN, "--pipeline", "ingest", "--url", url)
    assert (sent.returncode, sent.stdout.decode()) == (0, f"{RUN}\n")
    assert (shown.returncode, named.returncode) == (0, 0), shown.stderr
    words = " ".join(shown.stdout.decode().split())
    assert "pipeline ingest" in words
    assert "chunk completed, waited 3.0 s, ran 2.0 s, 2 attempts embed waiting" in words
    assert seen == [
        "POST /pipelines/ingest",
        "GET /models",
        f"GET /jobs/echo/{RUN}",
        f"GET /jobs/transcription/{RUN}",
        f"GET /pipelines/ingest/{RUN}",
        f"DELETE /pipelines/ingest/{RUN}",
    ]


def test_a_run_is_waited_for_in_its_pipeline() -> None:
    with stub(result={"content_type": "application/json", "size": 17, "sha256": ""}) as (url, seen):
        done = run("submit", "-", "--pipeline", "ingest", "--wait", "--url", url, stdin=b"data")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"text": "hello"})
    assert f"GET /pipelines/ingest/{RUN}/result" in seen


def test_a_duplicate_is_said_and_names_the_first_job() -> None:
    with stub(deduplicated=True) as (url, _):
        done = run("submit", __file__, "--service", "transcription", "--dedup-key", "https://h/a", "--url", url)
    assert (done.returncode, done.stdout.decode()) == (0, f"{JOB}\n")
    assert b"this item's first job (--force takes it again) is completed" in done.stderr
    assert b"--idempotency-key" not in done.stderr, "a duplicate leaves the key free"


@pytest.mark.parametrize("waiting", [(), ("--wait",)])
def test_an_answer_of_an_equal_requests_job_is_said_and_a_run_of_its_own_is_not(waiting: tuple[str, ...]) -> None:
    words = b"an equal request's job (--fresh runs it anew)"
    asked = ("submit", __file__, "--service", "transcription", *waiting)
    with stub(x_cache="hit") as (url, _):
        hit = run(*asked, "--url", url)
    with stub(x_cache="miss") as (url, _):
        miss = run(*asked, "--url", url)
    assert (hit.returncode, miss.returncode) == (0, 0)
    assert (words in hit.stderr, words in miss.stderr) == (True, False)
    assert b"--idempotency-key" not in hit.stderr, "a hit leaves the key free"
    assert (b"--idempotency-key" in miss.stderr) == (not waiting)


def test_each_option_of_a_submission_goes_to_the_server_under_its_own_name(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    _ = file.write_bytes(b"x")
    sent: list[dict[str, str]] = []
    options = {"priority": "critical", "content_class": "code", "dedup_key": "https://h/ü", "ordering_key": "o"}
    named = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    with stub(sent=sent) as (url, _):
        _ = run("submit", file, "--service", "transcription", *named, "--url", url)
        _ = run("submit", file, "--service", "transcription", *named, "--force", "--url", url)
        _ = run("submit", file, "--service", "transcription", "--fresh", "--url", url)
    assert sent == [
        options | {"cache-control": ""},
        options | {"force": "true", "cache-control": ""},
        {"cache-control": "no-cache"},
    ]


def test_kept_answers_are_forgotten_of_one_model_or_all() -> None:
    with stub() as (url, seen):
        assert b"7 kept answers forgotten" in run("cache", "clear", "--admin-url", url).stderr
        assert run("cache", "clear", "--model", "a/b", "--admin-url", url).returncode == 0
    assert seen == ["DELETE /cache", "DELETE /cache/a/b"]


def test_events_are_followed_to_the_verdict_and_its_exit_code() -> None:
    with stub() as (url, seen):
        done = run("events", JOB, "--service", "transcription", "--json", "--url", url)
        shown = run("events", JOB, "--service", "transcription", "--url", url)
    assert done.returncode == 0
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == list(EVENTS)
    assert shown.stdout.decode().splitlines() == [f"{name} completed" for name in EVENTS]
    assert seen == [f"GET /jobs/transcription/{JOB}/events"] * 2
    with stub(status="failed", error={"code": "inference_error", "message": "no"}) as (url, _):
        failed = run("events", JOB, "--service", "transcription", "--url", url)
    assert failed.returncode == 1
    assert b"done failed, inference_error: no" in failed.stdout


def test_watch_without_a_terminal_is_a_line_a_change_and_ends_with_the_verdicts() -> None:
    with stub() as (url, _):
        plain = run("watch", JOB, "--service", "transcription", "--url", url)
        lines = run("watch", JOB, "--service", "transcription", "--json", "--url", url)
    assert (plain.returncode, plain.stdout.decode()) == (0, f"{JOB} whisper completed\n")
    assert json.loads(lines.stdout)["job_id"] == JOB
    with stub(status="expired") as (url, _):
        assert run("watch", JOB, "--service", "transcription", "--url", url).returncode == 1


def test_watch_without_ids_follows_the_newest_until_ctrl_c() -> None:
    with stub(status="pending", queue_position=3) as (url, _):
        process = subprocess.Popen([RELAYQ, "watch", "--interval", "0.1", "--url", url], stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout as lines:
            assert lines.readline().decode() == f"{JOB} whisper pending, 3 ahead\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert lines.read() == b"", "what did not change is not said again"


def test_a_live_table_on_a_terminal() -> None:
    with stub() as (url, _):
        shown = on_a_terminal("watch", JOB, "--service", "transcription", "--url", url)
    assert b"whisper" in shown
    assert b"\x1b[" in shown, "drawn, not printed"


def test_a_progress_bar_on_a_terminal(tmp_path: Path) -> None:
    facts = {"content_type": "application/json", "size": 17, "sha256": ""}
    with stub(result=facts) as (url, _):
        shown = on_a_terminal("submit", __file__, "--service", "transcription", "--url", url)
        fetched = on_a_terminal("result", JOB, "--service", "transcription", "--output", tmp_path / "r", "--url", url)
    assert b"sending test_command.py" in shown
    assert b"fetching r" in fetched


def on_a_terminal(*arguments: str | Path) -> bytes:
    """What a command draws on one."""
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
        process = subprocess.Popen([RELAYQ, *arguments], stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # how Linux says that the other end is closed
            while chunk := terminal.read(65536):
                shown += chunk
        assert process.wait(20) == 0, shown
    return shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_that_names_the_command(shell: str) -> None:
    done = run("completion", shell)
    assert done.returncode == 0
    assert b"_RELAYQ_COMPLETE" in done.stdout


def test_bash_completes_commands_with_it() -> None:
    script = (
        f'PATH={RELAYQ.parent}:$PATH; eval "$(relayq completion bash)"; COMP_WORDS=(relayq key); COMP_CWORD=1; '
        'complete -p relayq >/dev/null && _relayq_completion relayq; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=50, check=False)
    assert done.stdout.decode().split() == ["keygen"]


def test_keygen_makes_a_key_that_the_gateway_takes(tmp_path: Path) -> None:
    made = json.loads(run("keygen", "api-key", "--name", "ci", "--tenant", "acme", "--right", "read", "--json").stdout)
    keys = tmp_path / "keys.yaml"
    _ = keys.write_text(json.dumps({"keys": [made["entry"]]}), "utf-8")
    caller = KeyFile(str(keys)).caller(made["key"])
    assert caller is not None
    assert (caller.tenant, caller.key, caller.rights) == ("acme", "ci", {"read"})
    plain = run("keygen", "api-key", "--name", "ci", "--tenant", "acme")
    key = plain.stdout.decode().strip()
    entry = next(line for line in plain.stderr.decode().splitlines() if line.startswith("  - "))
    _ = keys.write_text(f"keys:\n{entry}\n", "utf-8")
    assert KeyFile(str(keys)).caller(key) is not None
    assert key not in plain.stderr.decode()


def test_keygen_makes_an_encryption_key() -> None:
    done = run("keygen", "encryption-key", "--id", "k1")
    assert KeyRing.parse(done.stdout.decode(), "here").current.key_id == "k1"
    assert run("keygen", "encryption-key", "--id", "k 1").returncode == 2
    assert run("keygen", "encryption-key").stdout != run("keygen", "encryption-key").stdout


def test_a_submission_says_its_key_so_that_it_can_be_repeated() -> None:
    with stub(status="pending") as (url, _):
        made = run("submit", __file__, "--service", "transcription", "--url", url)
        given = run("submit", __file__, "--service", "transcription", "--idempotency-key", "mine", "--url", url)
    assert re.search(rb"--idempotency-key [0-9a-f]{32}", made.stderr)
    assert b"--idempotency-key mine" in given.stderr


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
