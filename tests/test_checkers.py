"""Judges of the end-to-end suite, on planted histories: each passes a good one and catches its own kind of fault."""

from __future__ import annotations

import math
from pathlib import Path

from e2e import checkers
from e2e.history import History, Op, read_history


def submitted(tag: str, job_id: str = "", *, at_seconds: float = 0) -> list[Op]:
    return [
        Op(at_seconds=at_seconds, kind="submit", outcome="invoked", tag=tag),
        Op(at_seconds=at_seconds + 0.1, kind="submit", tag=tag, job_id=job_id or f"id-{tag}", http_status=202),
    ]


def read(
    job_id: str, status: str, *, at_seconds: float, attempts: int = 1, digest: str = "", error_code: str = ""
) -> Op:
    return Op(
        at_seconds=at_seconds,
        kind="read",
        job_id=job_id,
        status=status,
        attempts=attempts,
        digest=digest,
        error_code=error_code,
    )


def run(tag: str, at_seconds: float) -> Op:
    return Op(at_seconds=at_seconds, kind="run", tag=tag)


def fault(at_seconds: float, job_id: str = "") -> Op:
    return Op(at_seconds=at_seconds, kind="fault", target="relay-1", detail="kill", job_id=job_id)


def good_history() -> list[Op]:
    """One job that survives the death of its relay."""
    return [
        *submitted("a", at_seconds=1),
        run("a", 2),
        read("id-a", "processing", at_seconds=2.1),
        fault(3, "id-a"),
        run("a", 5),
        read("id-a", "processing", at_seconds=5.1, attempts=2),
        read("id-a", "completed", at_seconds=6, attempts=2, digest="d1"),
        read("id-a", "completed", at_seconds=9, attempts=2, digest="d1"),
    ]


def test_a_good_history_passes_every_checker() -> None:
    ops = good_history()

    assert checkers.nothing_lost(ops) == []
    assert checkers.one_verdict(ops) == []
    assert checkers.no_phantom(ops) == []
    assert checkers.bounded_repeats(ops, runs_allowed=4) == []
    assert checkers.all_completed(ops) == []
    assert checkers.only_documented_refusals(ops) == []
    assert checkers.recovered_within(ops, limit_seconds=5) == []


def test_an_acknowledged_job_that_nobody_saw_end_is_lost() -> None:
    ops = [*good_history(), *submitted("b", at_seconds=4), read("id-b", "processing", at_seconds=5)]

    assert checkers.nothing_lost(ops) == ["job id-b (b) was acknowledged and never ended"]


def test_a_submission_without_an_answer_may_come_out_or_not() -> None:
    unanswered = Op(at_seconds=1, kind="submit", outcome="unknown", tag="u")
    cut_off = Op(at_seconds=1, kind="submit", outcome="invoked", tag="v")

    assert checkers.nothing_lost([unanswered, cut_off]) == []
    assert checkers.no_phantom([unanswered, cut_off, run("u", 2), run("v", 2)]) == []


def test_a_refused_submission_that_ran_is_a_phantom() -> None:
    refused = Op(at_seconds=1, kind="submit", outcome="refused", tag="r", http_status=503)

    assert checkers.no_phantom([refused, run("r", 2)]) == ["the model ran 'r' 1 times, which nobody submitted"]


def test_a_submission_that_was_refused_and_then_accepted_is_no_phantom() -> None:
    refused = Op(at_seconds=1, kind="submit", outcome="refused", tag="r", http_status=503)

    assert checkers.no_phantom([refused, *submitted("r", at_seconds=2), run("r", 3)]) == []


def test_a_run_of_a_job_nobody_submitted_is_a_phantom() -> None:
    assert checkers.no_phantom([run("ghost", 2)]) != []


def test_a_verdict_that_changes_is_caught() -> None:
    ops = [
        read("j", "completed", at_seconds=1, digest="d"),
        read("j", "failed", at_seconds=2, error_code="worker_lost"),
    ]

    assert checkers.one_verdict(ops) == [
        "job j ended as ('completed', 'd', '') and then as ('failed', '', 'worker_lost')"
    ]


def test_a_result_that_changes_is_caught() -> None:
    ops = [read("j", "completed", at_seconds=1, digest="d1"), read("j", "completed", at_seconds=2, digest="d2")]

    assert len(checkers.one_verdict(ops)) == 1


def test_a_finished_job_that_runs_again_is_caught() -> None:
    ops = [read("j", "completed", at_seconds=1, digest="d"), read("j", "processing", at_seconds=2)]

    assert checkers.one_verdict(ops) == ["job j was completed and then processing"]


def test_a_completed_job_without_a_result_is_caught() -> None:
    assert checkers.one_verdict([read("j", "completed", at_seconds=1)]) == ["job j completed without a result"]


def test_a_job_that_completes_after_its_client_was_told_cancelled_is_caught() -> None:
    told = Op(at_seconds=1, kind="cancel", job_id="j", status="cancelled", http_status=200)

    assert checkers.one_verdict([told, read("j", "cancelled", at_seconds=2, error_code="cancelled")]) == []
    assert len(checkers.one_verdict([told, read("j", "completed", at_seconds=2, digest="d")])) == 1


def test_a_cancel_that_answers_cancelled_for_a_completed_job_is_caught() -> None:
    told = Op(at_seconds=2, kind="cancel", job_id="j", status="cancelled", http_status=200)

    assert len(checkers.one_verdict([read("j", "completed", at_seconds=1, digest="d"), told])) == 1


def test_the_order_of_recording_does_not_matter_to_the_verdict() -> None:
    ops = [read("j", "completed", at_seconds=2, digest="d"), read("j", "processing", at_seconds=1)]

    assert checkers.one_verdict(ops) == []


def test_a_repeat_without_a_fault_is_caught() -> None:
    ops = [*submitted("a"), run("a", 1), run("a", 2)]

    assert checkers.bounded_repeats(ops, runs_allowed=4) == ["a ran 2 times without any fault"]


def test_a_fault_outside_the_jobs_life_does_not_excuse_a_repeat() -> None:
    before = [fault(1), *submitted("a", at_seconds=2), run("a", 3), run("a", 4)]
    after = [*submitted("a", at_seconds=2), run("a", 3), run("a", 4), fault(5)]

    assert len(checkers.bounded_repeats(before, runs_allowed=4)) == 1
    assert len(checkers.bounded_repeats(after, runs_allowed=4)) == 1


def test_more_runs_than_allowed_are_caught_faults_or_not() -> None:
    ops = [*submitted("a"), fault(1), *(run("a", 2 + again) for again in range(5))]

    assert checkers.bounded_repeats(ops, runs_allowed=4) == ["a ran 5 times, 4 are allowed"]


def test_more_claims_than_allowed_are_caught_even_when_the_journal_died_with_the_model() -> None:
    ops = [*submitted("a"), read("id-a", "completed", at_seconds=3, attempts=6, digest="d")]

    assert checkers.bounded_repeats(ops, runs_allowed=4) == ["job id-a was claimed 6 times, 4 are allowed"]


def notice(job_id: str, status: str, event: str = "", *, at_seconds: float = 9) -> Op:
    return Op(at_seconds=at_seconds, kind="notice", job_id=job_id, status=status, detail=event or f"{job_id}:1")


def test_a_verdict_that_is_told_twice_under_one_id_is_told_well() -> None:
    ops = [read("j", "completed", at_seconds=1, digest="d"), notice("j", "completed"), notice("j", "completed")]

    assert checkers.notices(ops) == []


def test_a_verdict_that_nobody_was_told_is_caught() -> None:
    ops = [read("j", "failed", at_seconds=1, error_code="worker_lost"), notice("other", "failed")]

    assert checkers.notices(ops) == ["nobody was told that job j is failed"]


def test_a_verdict_under_two_ids_is_caught_for_its_receiver_would_act_twice() -> None:
    ops = [
        read("j", "completed", at_seconds=1, digest="d"),
        notice("j", "completed", "j:1"),
        notice("j", "completed", "j:2"),
    ]

    assert len(checkers.notices(ops)) == 1


def test_a_verdict_that_is_told_as_another_is_caught() -> None:
    ops = [read("j", "completed", at_seconds=1, digest="d"), notice("j", "failed")]

    assert checkers.notices(ops) == ["job j is completed and was told as failed"]


def test_a_failed_job_is_named_with_its_code() -> None:
    ops = [read("j", "failed", at_seconds=1, error_code="worker_lost")]

    assert checkers.all_completed(ops) == ["job j ended as failed worker_lost"]


def test_an_undocumented_refusal_and_a_lost_answer_are_caught() -> None:
    ops = [
        Op(at_seconds=1, kind="submit", outcome="refused", tag="a", http_status=503),
        Op(at_seconds=1, kind="submit", outcome="refused", tag="b", http_status=500, error_code="internal_error"),
        Op(at_seconds=1, kind="read", outcome="unknown", job_id="c", detail="connection reset"),
    ]

    assert checkers.only_documented_refusals(ops) == [
        "submit of b was refused with 500 internal_error",
        "read of c got no answer: connection reset",
    ]


def test_recovery_is_measured_from_the_fault_to_the_next_claim() -> None:
    assert checkers.recovery_seconds(good_history()) == {"id-a": 2.1}


def test_a_slow_recovery_is_caught() -> None:
    assert checkers.recovered_within(good_history(), limit_seconds=2) == [
        "job id-a was claimed again 2.1 s after the fault, 2 s are allowed"
    ]


def test_a_job_that_was_never_claimed_again_has_an_infinite_recovery() -> None:
    ops = [
        *submitted("a"),
        read("id-a", "processing", at_seconds=1),
        fault(2, "id-a"),
        read("id-a", "processing", at_seconds=9),
    ]

    assert checkers.recovery_seconds(ops) == {"id-a": math.inf}


def test_a_recovery_check_without_a_fault_proves_nothing_and_says_so() -> None:
    assert checkers.recovered_within([*submitted("a")], limit_seconds=5) != []


def test_what_is_left_in_a_queue_is_named() -> None:
    assert checkers.drained({"relay:m:pending": 0, "relay:m:outbox": 2}) == ["relay:m:outbox still holds 2"]


def test_memory_that_keeps_growing_is_caught_and_a_warm_up_is_not() -> None:
    mib = 1 << 20
    leaking = [(50 + 4 * step) * mib for step in range(30)]
    warming = [20 * mib, 40 * mib, *[60 * mib] * 28]

    assert len(checkers.flat_memory({"gateway": leaking})) == 1
    assert checkers.flat_memory({"gateway": warming}) == []
    assert len(checkers.flat_memory({"gateway": warming[:5]})) == 1


def test_a_history_reads_back_from_its_file_as_it_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path, clock=lambda: 12.5) as history:
        _ = history.add("submit", "invoked", tag="a")
        _ = history.add("submit", tag="a", job_id="j", http_status=202)
        _ = history.add("read", job_id="j", status="processing", attempts=1)

    assert read_history(path) == list(history.ops)
