"""The commands of the documents, run against a real `relayq dev`; their answers are the documents'.

In a ``console`` block a line after `$ ` is a command, the lines below it are its output; `…` stands for anything. A whole
page is one shell session. Ports are those of the stack that runs here; a command in an HTML comment is run, not shown.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

import pytest

from queuecore.testing.lacking import lacking
from queuecore.testing.servers import free_port

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT: Final = Path(__file__).parents[2]
WAV: Final = ROOT / "services/gateway/tests/data/tiny.wav"
BIN: Final = Path(sys.executable).parent
END: Final = "~~end~~"
STARTED_WITHIN: Final = 60
_BLOCK: Final = re.compile(r"^```console\n(.*?)^```$|^<!-- \$ (.*?) -->$", re.MULTILINE | re.DOTALL)


class Step(NamedTuple):
    """A command, what it prints, and where it stands."""

    line: int
    command: str
    output: str | None  # None: whatever


def steps_of(page: str) -> Iterator[Step]:
    for found in _BLOCK.finditer(page):
        line = page.count("\n", 0, found.start()) + 1
        if found[1] is None:
            yield Step(line, found[2], None)
            continue
        for part in re.split(r"^\$ ", found[1], flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield Step(line, command, output)


def pattern_of(output: str) -> re.Pattern[str]:
    lines = [r".*?".join(re.escape(text) for text in line.rstrip().split("…")) for line in output.rstrip().split("\n")]
    return re.compile(r"[ \t]*\n".join(lines) + r"\s*\Z", re.DOTALL)


class Stack:
    """`relayq dev` and a shell beside it."""

    def __init__(self, directory: Path, **environ: str) -> None:
        self.directory = directory
        self.log = directory / "dev.log"
        self.ports = {name: free_port() for name in ("gateway", "admin", "redis", "metrics", "reaper")}
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("GATEWAY_", "RELAY"))}
        self.environ = {
            **inherited,
            "PATH": f"{directory}:{BIN}:{os.environ['PATH']}",
            "GATEWAY_METRICS_PORT": str(self.ports["metrics"]),
            "REAPER_METRICS_PORT": str(self.ports["reaper"]),
            "RELAYQ_URL": f"http://localhost:{self.ports['gateway']}",
            "RELAYQ_ADMIN_URL": f"http://localhost:{self.ports['admin']}",
            "COLUMNS": "200",
            **environ,
        }
        _ = shutil.copy(WAV, directory / "talk.wav")
        ours = directory / "redis-cli"
        _ = ours.write_text(f'#!/bin/sh\nexec {shutil.which("redis-cli")} -p {self.ports["redis"]} "$@"\n', "utf-8")
        ours.chmod(0o755)

    def __enter__(self) -> Self:
        command = [
            BIN / "relayq", "dev", "--data", ".relayq", "--gateway-port", str(self.ports["gateway"]),
            "--admin-port", str(self.ports["admin"]), "--redis-port", str(self.ports["redis"]), "--max-relays", "2",
        ]  # fmt: skip
        with self.log.open("w") as log:
            self._dev = subprocess.Popen(command, cwd=self.directory, env=self.environ, stdout=log, stderr=log)
        self._shell = subprocess.Popen(
            ["bash", "--norc"], cwd=self.directory, env=self.environ, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        end = time.monotonic() + STARTED_WITHIN
        while "is ready after" not in self.log.read_text("utf-8"):
            assert time.monotonic() < end, self.log.read_text("utf-8")
            assert self._dev.poll() is None, self.log.read_text("utf-8")
            time.sleep(0.1)
        return self

    def __exit__(self, *_exit: object) -> None:
        self._shell.kill()
        _ = self._shell.communicate()
        self._dev.send_signal(signal.SIGTERM)
        _ = self._dev.wait(60)

    def run(self, command: str) -> str:
        """What the command prints, in the one shell of the page."""
        for port, name in (("8080", "gateway"), ("8081", "admin"), ("9101", "metrics"), ("9103", "reaper")):
            command = command.replace(f"localhost:{port}", f"localhost:{self.ports[name]}")
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        _ = self._shell.stdin.write(f"{command}\necho {END}\n")
        self._shell.stdin.flush()
        printed = ""
        while not printed.endswith(f"{END}\n"):
            line = self._shell.stdout.readline()
            assert line, f"the shell ended at: {command}"
            printed += line
        return printed.removesuffix(f"{END}\n").replace("\r", "")


@contextmanager
def stack(directory: Path, **environ: str) -> Generator[Stack, None, None]:
    for tool, package in (("curl", "curl"), ("redis-cli", "redis-tools")):
        if shutil.which(tool) is None:
            lacking(f"{tool} is not installed (Debian: {package}): the documents' commands are not tried")
    with Stack(directory, **environ) as made:
        yield made


def check(page: str, made: Stack) -> None:
    steps = list(steps_of((ROOT / "docs" / page).read_text("utf-8")))
    assert steps
    wrong: list[str] = []
    for step in steps:
        printed = made.run(step.command)
        if step.output is not None and not pattern_of(step.output).match(printed):
            wrong.append(
                f"docs/{page}:{step.line}\n$ {step.command}\n-- the page says\n{step.output}\n-- it is\n{printed}"
            )
    log = "\n".join(made.log.read_text("utf-8").splitlines()[-20:])
    assert not wrong, "\n\n".join([*wrong, log])


def test_every_command_of_the_http_page_answers_as_it_says(tmp_path: Path) -> None:
    with stack(tmp_path) as made:
        check("http-api.md", made)


def test_every_command_of_the_operations_page_answers_as_it_says(tmp_path: Path) -> None:
    settings = {"MAX_REAP_ATTEMPTS": "0", "RELAY_BREAKER_FAILURES": "2", "RELAY_BREAKER_COOLDOWN_SECONDS": "600"}
    with stack(tmp_path, **settings) as made:
        check("operations.md", made)
