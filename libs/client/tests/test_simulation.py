"""The simulation of bursts, cold starts and KEDA's rule: the same seed gives the same figures, and they add up."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "simulate.py"


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_burst_on_an_empty_cluster_waits_for_the_cold_start_and_no_longer(simulation: ModuleType) -> None:
    load = simulation.Load(
        per_minute=0, burst=10, burst_every=60, minutes=1.5, most=10, start_seconds=15, polling_seconds=5
    )
    found = simulation.simulate(load)
    assert (found.jobs, found.pods, found.surplus_pods) == (10, 10, 0)
    assert 15 <= found.wait_p50_seconds <= found.longest_wait_seconds <= 20


def test_fewer_pods_than_jobs_make_rounds(simulation: ModuleType) -> None:
    load = simulation.Load(per_minute=0, burst=10, burst_every=60, minutes=1.5, most=5, job_seconds=20)
    found = simulation.simulate(load)
    assert found.pods == 10
    assert found.longest_wait_seconds > 30


def test_the_same_seed_prints_the_same_and_another_does_not() -> None:
    def shown(*options: str) -> str:
        command = [sys.executable, str(SCRIPT), "--minutes", "30", *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert shown("--seed", "7") == shown("--seed", "7")
    assert shown("--seed", "7") != shown("--seed", "8")
    refused = subprocess.run([sys.executable, str(SCRIPT), "--max", "0"], capture_output=True, check=False)
    assert refused.returncode == 2
    assert b"--max is at least 1" in refused.stderr
