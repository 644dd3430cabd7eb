"""One cluster for the whole run; a history, a workload and a nemesis for each test; evidence when one fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from e2e import checkers
from e2e.cluster import ARTIFACTS, Cluster, eventually
from e2e.history import History
from e2e.nemesis import Nemesis
from e2e.workload import Workload

_FAILED = pytest.StashKey[bool]()
# Attempts a job may have: the first, and one after each of max_reap_attempts deaths.
RUNS_ALLOWED = 4
Judge = Callable[..., None]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember for the fixtures' end whether the test failed."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two gateways, two reapers, three pods; taken down whatever happens."""
    one = Cluster()
    try:
        one.compose("build", timeout=1200)
        one.up()
        yield one
    finally:
        one.down()


@pytest.fixture
def directory(request: pytest.FixtureRequest) -> Path:
    """Where the test's evidence goes."""
    path = ARTIFACTS / str(request.node.name)
    path.mkdir(parents=True, exist_ok=True)
    for old in path.iterdir():
        old.unlink()
    return path


@pytest.fixture
def history(directory: Path) -> Iterator[History]:
    """The test's own history, on disk as it grows."""
    with History(directory / "history.jsonl") as one:
        yield one


@pytest.fixture
def nemesis(request: pytest.FixtureRequest, cluster: Cluster, history: History, directory: Path) -> Iterator[Nemesis]:
    """Faults of this test; undone at its end, and the evidence kept if it failed."""
    began = time.time_ns() / 1e9
    _ = cluster.redis("ACL", "LOG", "RESET")
    one = Nemesis(cluster, history)
    try:
        yield one
    finally:
        failed = request.node.stash.get(_FAILED, False)
        if failed:
            cluster.keep(directory, since_seconds=began)
        one.heal()
        cluster.up("--no-recreate")
        if failed:
            _ = cluster.redis("FLUSHALL")  # what this test left is not the next one's business


@pytest.fixture
def workload(cluster: Cluster, history: History, nemesis: Nemesis) -> Iterator[Workload]:
    """Clients of this test; they end before the nemesis heals what is left."""
    with Workload(cluster, history) as one:
        yield one


@pytest.fixture
def judge(cluster: Cluster, history: History, nemesis: Nemesis, workload: Workload) -> Judge:
    """Heal, drain, and hold the history against every promise."""

    def told() -> bool:
        workload.collect_notices()
        return not checkers.notices(history.ops)

    def check(*more: Callable[[list[checkers.Op]], list[str]], within_seconds: float = 60) -> None:
        workload.stop()
        nemesis.heal()
        workload.drain(within_seconds=within_seconds)
        _ = eventually(told, within=120, every=1, what="every verdict is told")
        ops = list(history.ops)
        problems = [
            *checkers.nothing_lost(ops),
            *checkers.one_verdict(ops),
            *checkers.no_phantom(ops),
            *checkers.bounded_repeats(ops, runs_allowed=RUNS_ALLOWED),
            *checkers.notices(ops),
            *(problem for checker in more for problem in checker(ops)),
        ]
        assert problems == []
        # A verdict whose acknowledgement was lost with the server is given out once more after a minute.
        _ = eventually(lambda: not checkers.drained(cluster.queue_dump()), within=100, every=0.5, what="drained")
        assert cluster.refused_commands() == []

    return check
