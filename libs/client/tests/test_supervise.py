"""The supervisor with real commands and real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from relayq import supervise
from relayq.supervise import FLOOR_SECONDS, Restarts

PROGRAM = supervise.__file__


@contextmanager
def supervised(most: int, *command: str) -> Generator[subprocess.Popen[str], None, None]:
    """A supervisor in a process of its own."""
    argv = [sys.executable, "-I", "-S", PROGRAM, str(most), *command]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
                child.kill()
            process.kill()


def until(probe: Callable[[], bool], within: float = 10) -> None:
    end = time.monotonic() + within
    while not probe():
        assert time.monotonic() < end
        time.sleep(0.02)


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


def test_a_good_run_is_followed_by_the_next_with_a_fresh_process(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with supervised(3, "sh", "-c", f"echo $$ >> {journal}") as process:
        until(lambda: len(lines(journal)) >= 3)
        process.terminate()
        assert process.wait(10) == 0
    assert len(set(lines(journal))) == len(lines(journal)), "each run is another process"


def test_failures_in_a_row_end_in_giving_up_with_the_command_s_code() -> None:
    with supervised(2, "sh", "-c", "exit 7") as process:
        _, output = process.communicate(timeout=10)
    assert process.returncode == 7
    assert "again in 1 s" in output
    assert "giving up" in output


def test_a_command_that_does_not_exist_is_named() -> None:
    with supervised(1, "no-such-command-here") as process:
        _, output = process.communicate(timeout=10)
    assert process.returncode == 127
    assert "no-such-command-here" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_end_waited_for(tmp_path: Path, number: signal.Signals) -> None:
    journal = tmp_path / "journal"
    script = f"trap 'sleep 0.3; echo drained >> {journal}; exit 0' TERM INT; echo up >> {journal}; sleep 5 & wait"
    with supervised(3, "sh", "-c", script) as process:
        until(lambda: lines(journal) == ["up"])
        process.send_signal(number)
        assert process.wait(10) == 0
    assert lines(journal) == ["up", "drained"]


@pytest.mark.parametrize(
    ("script", "code"), [("echo up >&2; exec sleep 60", 0), ("trap 'exit 9' TERM; echo up >&2; sleep 5 & wait", 9)]
)
def test_a_command_that_the_signal_itself_ended_was_still_starting_and_is_well(script: str, code: int) -> None:
    with supervised(3, "sh", "-c", script) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "up\n"
        process.terminate()
        assert process.wait(10) == code


def test_a_signal_during_the_pause_ends_it_at_once() -> None:
    with supervised(10, "sh", "-c", "exit 1") as process:
        assert process.stderr is not None
        assert "failure 1" in process.stderr.readline()
        assert "failure 2" in process.stderr.readline()  # the pause is 2 s now
        began = time.monotonic()
        process.terminate()
        assert process.wait(10) == 0
        assert time.monotonic() - began < 1


def test_orphans_it_inherits_do_not_stay_as_zombies(tmp_path: Path) -> None:
    """As PID 1 does; here it becomes a subreaper, which inherits orphans in the same way."""
    journal = tmp_path / "journal"
    reaper = f"import ctypes, runpy; ctypes.CDLL(None).prctl(36, 1); runpy.run_path({PROGRAM!r}, run_name='__main__')"
    script = f"(sh -c 'sleep 0.2; echo gone >> {journal}' &); sleep 60"
    argv = [sys.executable, "-c", reaper, "3", "sh", "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: lines(journal) == ["gone"])
        family = psutil.Process(process.pid)
        until(lambda: all(child.status() != psutil.STATUS_ZOMBIE for child in family.children(recursive=True)))
        process.terminate()
        _ = process.wait(10)
        for child in psutil.Process(os.getpid()).children(recursive=True):
            if "sleep 60" in " ".join(child.cmdline()):
                child.kill()


def test_pauses_grow_to_a_limit_and_a_good_run_resets_them() -> None:
    restarts = Restarts(100)
    assert [restarts.after(1, 0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert restarts.after(0, 60) == 0
    assert restarts.after(1, 0) == 1
    assert restarts.after(3, 0) == FLOOR_SECONDS, "a lost claim is no failure, and no hot loop either"
    assert Restarts(1).after(-9, 5) is None
