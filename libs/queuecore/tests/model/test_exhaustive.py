"""Every interleaving, small: the guarantees hold in each state, and each planted fault is found."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from queuecore.broker import Order
from queuecore.testing.exploration import Explorer, Scenario
from queuecore.testing.requirement import requirement
from queuecore.testing.specification import Job, Specification

SCENARIOS = [
    Scenario("one job: killed, stopped, a reply lost, cancelled", jobs=1, budget={"kill": 1, "stop": 1, "loss": 1, "cancel": 1}),
    Scenario("one job: two deaths and two lost replies", jobs=1, budget={"kill": 2, "loss": 2}),
    Scenario("two jobs: a worker killed", budget={"kill": 1}),
    Scenario("two jobs: a reply lost", budget={"loss": 1}),
    Scenario("two jobs: a worker stopped", budget={"stop": 1}),
    Scenario("two jobs: killed and cancelled", reapers=1, budget={"kill": 1, "cancel": 1}),
    Scenario("two jobs: SIGTERM and a retry", reapers=1, budget={"term": 1, "retry": 1}),
    Scenario("two jobs of one ordering key: killed and cancelled", reapers=1, ordering_key="k", budget={"kill": 1, "cancel": 1}),
    Scenario("fast death: killed, connection cut", jobs=1, fast_death=True, budget={"kill": 1, "cut": 1, "stop": 1}),
    Scenario("fast death, two jobs", reapers=1, fast_death=True, budget={"kill": 1, "cut": 1}),
    Scenario("an operator's LMOVE and LREM, reconciled", jobs=1, reconciler=True, budget={"kill": 1, "move": 1, "remove": 1}),
    Scenario("two jobs: an operator and a death", reapers=1, reconciler=True, budget={"kill": 1, "move": 1, "remove": 1}),
    Scenario("a foreign relay beside ours", jobs=1, foreign=True, budget={"foreign": 1, "kill": 1, "cancel": 1}),
    Scenario("two jobs, two workers, two reapers: killed, a reply lost, an operator", budget={"kill": 1, "loss": 1, "move": 1}),
]  # fmt: skip
# One slot for two jobs: it is never held twice, never kept by a claim that is over, and always comes back. (A lapsed
# lease that its owner revives, by a renewal or by repeating its claim, takes its slot again: docs/models.md.)
GATED = [
    Scenario("one slot: a worker killed", slots=1, budget={"kill": 1}),
    Scenario("one slot: SIGTERM and a retry", slots=1, reapers=1, budget={"term": 1, "retry": 1}),
    Scenario("one slot: killed and cancelled", slots=1, reapers=1, budget={"kill": 1, "cancel": 1}),
]
# A peek takes nothing and the claim moves the entry: the same adversaries, where the moments differ.
PEEKED = [
    Scenario("one job: killed, stopped, a reply lost, cancelled", jobs=1, reapers=1, budget={"kill": 1, "stop": 1, "loss": 1, "cancel": 1}),
    Scenario("two jobs: a worker killed", budget={"kill": 1}),
    Scenario("two jobs: a worker stopped", reapers=1, budget={"stop": 1}),
    Scenario("two jobs: SIGTERM and a retry", reapers=1, budget={"term": 1, "retry": 1}),
    Scenario("fast death: killed, connection cut", jobs=1, fast_death=True, budget={"kill": 1, "cut": 1}),
    Scenario("an operator undoes and removes claims, reconciled", jobs=1, reconciler=True, budget={"kill": 1, "move": 1, "remove": 1}),
    Scenario("a relay of another make beside ours", jobs=1, foreign=True, budget={"foreign": 1, "kill": 1, "cancel": 1}),
]  # fmt: skip
ORDERS: tuple[Order, ...] = ("deadline", "lanes")


class NoFence(Specification):
    """renew, complete, fail and release take anybody's word."""

    @staticmethod
    def _owns(job: Job, fence: int, claim_id: str) -> bool:
        return True


class ClaimWithoutLook(Specification):
    """claim does not read again whether the entry is there and unowned."""

    def claim(self, job_id: str, claim_id: str, now: int, **options: Any) -> str:
        job = self.state.jobs.get(job_id)
        if job is not None and not job.terminal and job.claim_id != claim_id:
            if job_id not in self.state.processing:
                self.state.processing.append(job_id)
            job.lease_until = None
        return super().claim(job_id, claim_id, now, **options)


class ReapWithoutLook(Specification):
    """reap trusts what the reaper saw before."""

    def lease_is_live(self, job: Job, now: int) -> bool:
        return sys._getframe(1).f_code.co_name != "reap" and super().lease_is_live(job, now)


class VerdictLeavesPending(Specification):
    """A verdict removes the job from processing only."""

    def leave(self, job_id: str, job: Job | None) -> None:
        kept = list(self.state.pending)
        super().leave(job_id, job)
        if job is not None and not job.lease_until:
            self.state.pending[:] = kept


class RetryKeepsSlot(Specification):
    """A job that waits for its retry still holds its slot."""

    def free_slots(self, job: Job, now: int) -> None:
        if sys._getframe(1).f_code.co_name != "fail":
            super().free_slots(job, now)


FAULTS: dict[type[Specification], tuple[str, dict[str, int]]] = {
    NoFence: ("G2", {"stop": 1}),
    ClaimWithoutLook: ("G1", {"stop": 1}),
    ReapWithoutLook: ("G2", {}),
    VerdictLeavesPending: ("G3", {"stop": 1}),
    RetryKeepsSlot: ("G7", {"retry": 1}),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "scenario",
    [
        *SCENARIOS,
        *(
            replace(one, name=f"peek, {order}: {one.name}", order=order)
            for order in ORDERS
            for one in [*PEEKED, *GATED]
        ),
        *GATED,
    ],
    ids=lambda scenario: scenario.name,
)
@requirement(
    "job:any:in-one-place",
    "claim:claim:one-current-claim",
    "verdict:any:one-per-generation",
    "cancel:any:cancelled-is-final",
)
def test_no_interleaving_breaks_a_guarantee(scenario: Scenario) -> None:
    explorer = Explorer(scenario)
    assert explorer.run() is None
    assert explorer.states > 500, "a search that finds nothing to search proves nothing"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_gives_a_counterexample(fault: type[Specification]) -> None:
    guarantee, budget = FAULTS[fault]
    found = Explorer(Scenario("planted", jobs=1, budget=budget, make=fault, slots=int(guarantee == "G7"))).run()
    assert found is not None
    assert found.guarantee.startswith(guarantee), found
    assert found.trace
