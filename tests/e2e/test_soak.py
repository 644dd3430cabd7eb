"""Thousands of jobs while things die at random: every promise holds and no process grows."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from e2e import checkers
from e2e.cluster import PODS, Cluster
from e2e.conftest import Judge
from e2e.nemesis import Nemesis
from e2e.workload import Workload

pytestmark = [pytest.mark.docker, pytest.mark.slow]

JOBS = int(os.environ.get("E2E_SOAK_JOBS", "5000"))
SECONDS = float(os.environ.get("E2E_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("E2E_SEED", "20"))
# A model killed under a job fails that job, in words; everything else ends well.
FAILURES_ALLOWED = {"inference_error", "inference_unavailable", "worker_lost"}

OURS: Final = ("edge", "gateway", "reaper", "relay", "model", "pod")  # not the S3 server, nor what receives webhooks
MOST_BYTES_PER_JOB: Final = 8 << 10  # record, indexes, tombstone and the webhook's log; measured: 5,000


def faults(nemesis: Nemesis, dice: random.Random) -> list[Callable[[], None]]:
    """One fault each, aimed at random."""
    pod, replica = dice.choice(PODS), dice.choice((1, 2))
    return [
        lambda: nemesis.kill(f"relay-{pod}"),
        lambda: nemesis.kill_pod(pod),
        lambda: nemesis.kill(f"model-{pod}"),
        lambda: nemesis.pause(f"relay-{pod}"),
        lambda: nemesis.cut_off(f"pod-{pod}", "queue"),
        lambda: nemesis.stop(f"relay-{pod}"),
        lambda: nemesis.kill("gateway", index=replica),
        lambda: nemesis.stop("gateway", index=replica),
        lambda: nemesis.kill("reaper", index=replica),
        lambda: nemesis.pause("reaper", index=replica),
        lambda: nemesis.restart("valkey"),
        lambda: nemesis.pause("valkey"),
        lambda: nemesis.restart("s3"),
        lambda: nemesis.slow("s3", cpus=0.1),
        nemesis.fill,
    ]


def only_allowed_failures(ops: list[checkers.Op]) -> list[str]:
    """Jobs fail for no other reason than a model that died under them."""
    return [problem for problem in checkers.all_completed(ops) if not any(code in problem for code in FAILURES_ALLOWED)]


@pytest.mark.timeout(SECONDS * 2 + 900)
def test_thousands_of_jobs_under_a_random_nemesis(
    workload: Workload, nemesis: Nemesis, cluster: Cluster, judge: Judge, directory: Path
) -> None:
    history = workload.history
    dice = random.Random(SEED)
    samples: defaultdict[str, list[int]] = defaultdict(list)
    pause = threading.Event()
    # A process a job would spend two processors on starting Python; processes still come and go.
    cluster.up(env={"RELAY_MAX_JOBS": "50"})
    try:
        workload.start(per_second=1.2 * JOBS / SECONDS, clients=8, most_open=200)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or len(history.acknowledged()) < JOBS:
            assert time.monotonic() < end + SECONDS, f"only {len(history.acknowledged())} jobs were accepted"
            dice.choice(faults(nemesis, dice))()
            _ = pause.wait(dice.uniform(1, 8))
            workload.collect_runs()
            nemesis.heal()
            _ = pause.wait(dice.uniform(2, 6))
            for name, size in cluster.memory_bytes().items():
                samples[name].append(size)

        _ = (directory / "memory.json").write_text(json.dumps(samples), "utf-8")
        judge(only_allowed_failures, within_seconds=SECONDS + 300)
        ours = {name: sizes for name, sizes in samples.items() if any(f"-{one}-" in name for one in OURS)}
        assert checkers.flat_memory(ours) == []
        # Valkey keeps every record until its retention ends: what may grow is the number of jobs, not their size.
        (valkey,) = [sizes for name, sizes in samples.items() if "-valkey-" in name]
        assert (valkey[-1] - valkey[0]) / len(history.acknowledged()) < MOST_BYTES_PER_JOB
    finally:
        nemesis.heal()
        cluster.up()
