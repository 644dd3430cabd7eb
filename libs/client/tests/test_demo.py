"""`make demo` succeeds only when all of it really happened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from relayq import demo
from relayq.demo import Story, plain, run_demo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_relay_is_killed_mid_job_and_the_job_ends_well(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "relayq.demo"]
    environ = {**os.environ, "REDIS_URL": "redis://127.0.0.1:1", "REAPER_ENABLED": "false"}
    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    moments = [int(found) for found in re.findall(r"^ *(\d+) ms  ", done.stdout, re.MULTILINE)]
    assert len(moments) >= 8
    assert moments == sorted(moments)
    relays = re.findall(r"relay (\d+)", done.stdout)
    assert len(set(relays)) == 2
    assert "reaped once, one verdict" in done.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def spare(pid: int) -> None:
    """Do not kill."""


def test_without_the_kill_the_demo_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "INFERENCE_SECONDS", 1.5)
    monkeypatch.setattr(demo, "strike", spare)
    assert run_demo(None, os.environ) == 1
    assert "The demo failed: the job was completed before that was seen" in capsys.readouterr().err


def test_the_demo_shows_the_defaults_whatever_the_environment_says() -> None:
    environ = {"PATH": "/bin", "REDIS_URL": "x", "MAX_REAP_ATTEMPTS": "0", "RELAY_DRAIN_SECONDS": "1", "HOME": "/root"}
    assert plain(environ) == {"PATH": "/bin", "HOME": "/root"}


def test_the_picture_is_to_scale() -> None:
    story = Story()
    story.marks = {"a": 0.0, "b": 1.0, "c": 2.0}
    first, second, scale = story.draw([("one", "a", "b", "X"), ("two", "b", "c", "ok")]).splitlines()
    assert first.count("=") == second.count("=") == demo.WIDTH // 2
    assert first.endswith("X")
    assert scale.endswith("2000")
