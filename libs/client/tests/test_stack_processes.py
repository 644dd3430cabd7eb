"""Children that cannot outlive us, services that are kept running, and the scaler: with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from queuecore.testing.clock import eventually
from relayq.dev.child import Service, end, ending, launch
from relayq.dev.plan import Command, StackError
from relayq.dev.scaler import Scaler, starts

pytestmark = pytest.mark.anyio


def sh(script: str, name: str = "child") -> Command:
    return Command(name, ("sh", "-c", script), {"PATH": os.environ["PATH"]})


async def test_a_child_has_its_own_group_and_its_output_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    process = await launch(sh("echo out; echo err >&2; sleep 60"), log)
    assert await eventually(lambda: log.read_text("utf-8") == "out\nerr\n")
    assert os.getpgid(process.pid) == process.pid
    assert await end([process], within_seconds=5) == []
    assert process.returncode == -signal.SIGTERM


async def test_a_deaf_child_is_killed_with_all_it_started(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    process = await launch(sh("trap '' TERM; sleep 61 & echo $!; wait; wait"), log)
    grandchild = int(await eventually(lambda: log.read_text("utf-8")))
    assert await end([process], within_seconds=0.2) == [process.pid]
    assert await eventually(lambda: not psutil.pid_exists(grandchild) or _is_zombie(grandchild))


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


PARENT = """
import asyncio, os, sys
from pathlib import Path
from relayq.dev.child import launch
from relayq.dev.plan import Command
async def main():
    process = await launch(Command("child", ("sleep", "62"), dict(os.environ)), Path(sys.argv[1]))
    print(process.pid, flush=True)
    await process.wait()
asyncio.run(main())
"""


def _orphaned_child(log: Path) -> int:
    """pid of a child whose parent was killed while it ran."""
    with subprocess.Popen([sys.executable, "-c", PARENT, str(log)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        parent.kill()
    return child


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own tether is Linux'")
async def test_a_parent_that_is_killed_takes_its_children_along(tmp_path: Path) -> None:
    child = await asyncio.to_thread(_orphaned_child, tmp_path / "log")
    assert await eventually(lambda: not psutil.pid_exists(child) or _is_zombie(child))


async def test_a_service_that_never_came_up_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    service = Service(sh("echo 'GATEWAY_PROT: unknown setting'; exit 1", "gateway"), tmp_path, lambda _: None)
    await service.start()
    process = service.process
    assert process is not None
    _ = await process.wait()
    with pytest.raises(StackError, match=r"(?s)gateway did not start \(exit 1\).*GATEWAY_PROT"):
        service.check()
    _ = await service.stop(within_seconds=1)


async def test_a_service_that_dies_is_started_again_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    service = Service(sh("sleep 63", "gateway"), tmp_path, said.append)
    await service.start()
    service.settle()
    first = service.process
    assert first is not None
    first.kill()

    def second() -> Process | None:
        return service.process if service.process is not first else None

    assert await eventually(second)
    assert "gateway ended (killed by SIGKILL)" in said[0]
    assert await service.stop(within_seconds=5) == []
    assert service.process is not None
    assert service.process.returncode is not None


def test_endings_are_words() -> None:
    assert [ending(None), ending(0), ending(3), ending(-9), ending(-200)] == [
        "running", "exit 0", "exit 3", "killed by SIGKILL", "killed by signal 200",
    ]  # fmt: skip


# -- the scaler -------------------------------------------------------------------------------------------------


def test_one_relay_for_each_open_job_up_to_the_most() -> None:
    assert starts({"a": 3}, {}, 10) == ["a", "a", "a"]
    assert starts({"a": 3}, {"a": 2}, 10) == ["a"]
    assert starts({"a": 3}, {"a": 3}, 10) == []
    assert starts({"a": 30}, {"a": 1}, 4) == ["a", "a", "a"]
    assert starts({"a": 0, "b": 0}, {}, 4) == []
    assert starts({"a": 1}, {"b": 4}, 4) == []
    assert starts({"a": 1}, {"a": 3}, 4) == [], "more relays than jobs is no reason to start any"


def test_places_go_round_so_that_no_model_takes_them_all() -> None:
    assert starts({"a": 10, "b": 10, "c": 1}, {}, 4) == ["a", "b", "c", "a"]


@asynccontextmanager
async def scaling(
    open_jobs: dict[str, int], most: int, tmp_path: Path, script: str = "sleep 64"
) -> AsyncGenerator[tuple[Scaler, list[str]], None]:
    said: list[str] = []

    async def depths() -> dict[str, int]:
        return dict(open_jobs)

    async def start(model: str) -> Process:
        return await launch(sh(script, model), tmp_path / "relay.log")

    scaler = Scaler(depths, start, most, said.append)
    task = asyncio.create_task(scaler.run())
    try:
        yield scaler, said
    finally:
        _ = task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        _ = await scaler.stop(within_seconds=5)
        assert scaler.relays == {}


async def test_relays_follow_the_jobs_and_there_are_none_when_idle(tmp_path: Path) -> None:
    jobs = {"a": 1, "b": 0}
    async with scaling(jobs, 3, tmp_path) as (scaler, _):
        assert await eventually(lambda: list(scaler.relays.values()) == ["a"])
        jobs["a"] = 5
        assert await eventually(lambda: list(scaler.relays.values()) == ["a", "a", "a"])
        jobs["a"] = 0
        assert await eventually(lambda: not scaler.relays), "relays that wait for nothing are dismissed"


async def test_a_killed_relay_is_replaced_at_once(tmp_path: Path) -> None:
    async with scaling({"a": 1}, 3, tmp_path) as (scaler, said):
        first = await eventually(lambda: next(iter(scaler.relays), 0))
        os.kill(first, signal.SIGKILL)
        second = await eventually(lambda: next((pid for pid in scaler.relays if pid != first), 0))
        assert len(scaler.relays) == 1
    assert f"relay {first} for a ended (killed by SIGKILL)" in said
    assert second != first


async def test_relays_that_cannot_work_are_started_ever_more_rarely(tmp_path: Path) -> None:
    async with scaling({"a": 1}, 3, tmp_path, "exit 1") as (_, said):
        assert await eventually(lambda: [text for text in said if "in 1 s" in text])
        starts_so_far = sum("started" in text for text in said)
        assert starts_so_far == 2, "0.5 s lie between the first and the second"
