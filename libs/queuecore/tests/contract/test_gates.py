"""Gates and limits of providers: the same over the specification and every transport."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from queuecore.broker import Breaker, Claim, Failure, NewJob, Result, Worker
from queuecore.config import parse_config
from queuecore.errors import ClaimLost
from queuecore.gates import Composite, Concurrency, Constant, Rate
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement
from queuecore.testing.stands import Stands

pytestmark = pytest.mark.anyio
WORKER = Worker("w", "run:7")
RESULT = Result("k", 1, "text/plain", "0" * 64)
MINUTE = 60_000
TIMELINES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "json" / "ratelimit_timelines.json").read_text("utf-8")
)


def rate(limit: int, window_ms: int = MINUTE) -> Rate:
    return Rate("acme:requests", "ratelimit:acme", limit, window_ms)


def tokens(limit: int, estimate: int = 100) -> Rate:
    return Rate("acme:tokens", "ratelimit:acme", limit, MINUTE, estimate, ":tokens")


def slots(limit: int) -> Concurrency:
    return Concurrency("acme:concurrent", "ratelimit:acme:running", limit)


async def submit(stand: Stand, *ids: str, estimate: int | None = None) -> None:
    fields = {} if estimate is None else {"tokens_estimate": str(estimate)}
    for job_id in ids:
        _ = await stand.broker.submit(NewJob(id=job_id, fields=fields, priority=stand.usual))


async def claim(stand: Stand, name: str = "c") -> str:
    """The id of the job that a claim gives now, due ones promoted as the reaper does each second; "" for none."""
    found = await take(stand, name)
    return found.job_id if found else ""


async def take(stand: Stand, name: str = "c") -> Claim | None:
    _ = await stand.broker.promote()
    return await stand.broker.claim(WORKER, f"{name}-{stand.clock.now_ms}-{(await stand.broker.counts()).processing}")


async def admitted(stand: Stand, at_ms: Sequence[int], *, serial: int = 0) -> list[bool]:
    """One submission and one claim at each of these times; what the claims got."""
    begin, found = stand.clock.now_ms, list[bool]()
    for number, at in enumerate(at_ms):
        stand.clock.advance(begin + at - stand.clock.now_ms)
        await submit(stand, f"j{serial + number:04}")
        found.append(bool(await claim(stand, f"c{number}")))
    return found


def timeline(name: str) -> dict[str, Any]:
    (found,) = (one for one in TIMELINES if one["id"] == name)
    return found


def gate_of_timeline(one: dict[str, Any]) -> Rate:
    limit, _, seconds = str(one["limit"]).partition("/")
    return rate(int(limit), 1000 * int(seconds.removesuffix("s")))


# -- the timelines ----------------------------------------------------------------------------------------------


@requirement("gate:rate:sliding-window")
async def test_ten_before_and_ten_after_the_border_of_a_window_the_second_ten_wait(stands: Stands) -> None:
    one = timeline("r01")
    stand = stands.make(gate_of_timeline(one))
    got = await admitted(stand, one["at_ms"])

    assert got == [True] * 10 + [False] * 10
    assert (await stand.broker.counts()).processing == 10
    stand.clock.advance(MINUTE - 200 - 1)
    assert await claim(stand) == "", "119.899 s: the ten of 59.9 s are still in the window"
    stand.clock.advance(1)
    assert [bool(await claim(stand, f"late{number}")) for number in range(11)] == [True] * 10 + [False]


async def test_exactly_ten_of_thirty_in_one_millisecond(stands: Stands) -> None:
    one = timeline("r02")
    assert sum(await admitted(stands.make(gate_of_timeline(one)), one["at_ms"])) == 10


async def test_no_counter_is_without_an_end_and_the_limit_recovers(stands: Stands) -> None:
    stand = stands.make(Composite((gate_of_timeline(timeline("r04")), tokens(100_000), slots(50))))
    assert sum(await admitted(stand, [0] * 12)) == 10
    for key in await stands.keys():
        assert stands.link
        assert await stands.link.call("TTL", key) >= 0, key
    stand.clock.advance(MINUTE)
    assert await claim(stand)


async def test_the_state_lives_as_long_as_the_window(stands: Stands) -> None:
    one = timeline("r05")
    assert await admitted(stands.make(gate_of_timeline(one)), one["at_ms"]) == [True, False, False, True]


async def test_who_waits_as_long_as_it_is_told_is_let_through(stands: Stands) -> None:
    stand = stands.make(gate_of_timeline(timeline("r08")))
    assert sum(await admitted(stand, [100 * number for number in range(11)])) == 10
    stand.clock.advance(MINUTE - 100 - 1)  # the ten of 0 to 0.9 s came in one part of the window, and leave it together
    assert await claim(stand) == "", "a millisecond early"
    stand.clock.advance(1)
    assert await claim(stand) != ""


def test_every_timeline_of_the_file_has_its_test() -> None:
    source = Path(__file__).read_text("utf-8") + (
        Path(__file__).parents[1] / "redis" / "test_gate_outage.py"
    ).read_text("utf-8")
    assert [one["id"] for one in TIMELINES if f'timeline("{one["id"]}")' not in source] == []


# -- a refusal costs nothing ------------------------------------------------------------------------------------


@requirement("gate:claim:refusal-costs-nothing")
async def test_a_refused_job_keeps_its_place_and_its_counters(stands: Stands) -> None:
    stand = stands.make(rate(1))
    await submit(stand, "j1", "j2", "j3")
    assert await claim(stand) == "j1"
    before = [await stand.broker.get(job_id) for job_id in ("j2", "j3")]
    assert await claim(stand) == ""

    assert [await stand.broker.get(job_id) for job_id in ("j2", "j3")] == before
    assert before[0].claims == before[0].fence == before[0].reaps == before[0].failures == 0
    places = await stand.operator.places()
    assert (places.processing, places.pending or places.delayed) == (["j1"], ["j2", "j3"])
    await submit(stand, "j4")
    stand.clock.advance(MINUTE)
    assert await claim(stand) == "j2", "the head is where it was"


async def test_a_called_waiter_is_before_a_job_that_never_waited(stands: Stands) -> None:
    stand = stands.make(rate(1))
    await submit(stand, "j1", "j2")
    assert await claim(stand) == "j1"
    assert await claim(stand) == ""
    stand.clock.advance(MINUTE)
    await submit(stand, "j3")
    found = await stand.broker.claim(WORKER, "before the promotion")
    assert found is None or found.job_id == "j2"
    assert await claim(stand) == ("" if found else "j2")


async def test_a_priority_job_goes_before_those_that_wait(stands: Stands) -> None:
    stand = stands.make(rate(3))
    await submit(stand, *(f"j{number:02}" for number in range(20)))
    while await claim(stand):
        pass
    stand.clock.advance(1_000)
    _ = await stand.broker.submit(NewJob(id="urgent", fields={}, priority=stand.first))
    assert await claim(stand) == ""
    stand.clock.advance(MINUTE - 1_000)
    got = [await claim(stand, f"c{number}") for number in range(3)]
    assert all(got)
    if stand.limits.order != "deadline":  # a deadline knows no priority
        assert "urgent" in got


async def test_waiters_come_back_as_the_window_lets_them_and_not_all_at_once(stands: Stands) -> None:
    stand = stands.make(rate(10))
    await submit(stand, *(f"j{number:03}" for number in range(60)))
    while await claim(stand):
        pass
    asked = (await stand.broker.counts()).gate_waits
    for _ in range(4):
        stand.clock.advance(MINUTE)
        got = [await claim(stand, f"r{number}") for number in range(11)]
        assert got[10] == ""
        assert all(got[:10])
    again = (await stand.broker.counts()).gate_waits - asked
    assert again <= 12, f"{again} refusals for four windows of a queue of fifty"


async def test_many_refused_entries_hide_no_job_that_may_run(stands: Stands) -> None:
    stand = stands.make(tokens(100))
    await submit(stand, "big", estimate=50)
    assert await claim(stand) == "big"
    await submit(stand, *(f"big{number:02}" for number in range(25)), estimate=90)  # batch_size is 10
    await submit(stand, "small", estimate=10)

    assert await claim(stand) == "small"
    assert (await stand.broker.get("big00")).claims == 0


async def test_what_an_overloaded_upstream_sends_back_does_not_go_before_fresh_work(stands: Stands) -> None:
    stand = stands.make(rate(3))
    await submit(stand, "j1")
    first = await take(stand)
    assert first
    stand.clock.advance(1)
    await submit(stand, "fresh")
    assert await stand.broker.fail(first, Failure("inference_error", "429", 429, 0, breaker=Breaker())) == "pending"
    stand.clock.advance(1)
    assert await claim(stand) == "fresh"
    assert await claim(stand, "d") == "j1"
    assert (await stand.broker.get("j1")).failures == 1


async def test_a_dropped_job_fails_with_its_reason(stands: Stands) -> None:
    stand = stands.make(Composite((rate(5), Constant("gates.0:constant", "drop", reason="retired"))))
    await submit(stand, "j1")

    assert await claim(stand) == ""
    record = await stand.broker.get("j1")
    assert (record.status, record.error_code, record.claims) == ("failed", "gate_dropped", 0)
    assert (await stand.broker.counts()).gate_drops == 1
    (event,) = await stand.broker.events("t")
    assert event.status == "failed"


@requirement("gate:claim:fault-waits")
async def test_a_gate_that_cannot_say_makes_the_job_wait_and_is_counted(stands: Stands) -> None:
    stand = stands.make(Composite((rate(5), slots(2))))
    await submit(stand, "j1")
    await stands.spoil("ratelimit:acme:running")

    assert await claim(stand) == ""
    counts = await stand.broker.counts()
    assert (counts.gate_faults, counts.gate_waits, counts.processing) == (1, 0, 0)
    assert (await stand.broker.get("j1")).claims == 0
    await stands.mend("ratelimit:acme:running")
    stand.clock.advance(5_000)
    _ = await stand.broker.promote()
    broker, stand = stand, stands.make(Composite((rate(5), slots(2))))  # another worker: it remembers nothing
    assert await claim(stand) == "j1"
    assert broker.broker.limits == stand.broker.limits


async def test_a_closed_model_waits_and_the_longest_wait_of_a_composite_counts(stands: Stands) -> None:
    stand = stands.make(Composite((rate(5), Constant("gates.0:constant", "wait", 90_000))))
    await submit(stand, "j1")
    assert await claim(stand) == ""
    stand.clock.advance(89_999)
    assert await claim(stand) == ""
    assert (await stand.broker.get("j1")).status == "pending"


# -- providers --------------------------------------------------------------------------------------------------


@requirement("gate:provider:shared-by-models")
async def test_two_models_of_one_provider_share_its_limit(stands: Stands) -> None:
    config = parse_config("""
models:
  a: {service_type: chat, operations: {x: /x}, provider: acme}
  b: {service_type: chat, operations: {x: /x}, provider: acme}
providers:
  acme: {requests_per_minute: 3, concurrent: 2}
""")
    a, b = stands.make(config.gate("a"), "a"), stands.make(config.gate("b"), "b")
    await submit(a, "a1", "a2", "a3")
    await submit(b, "b1", "b2")

    first, second = await take(a), await take(b)
    assert first
    assert second
    assert await claim(a) == await claim(b) == "", "two run: no slot"
    _ = await a.broker.complete(first, RESULT)
    third = [await claim(a), await claim(b)]
    assert sorted(map(bool, third)) == [False, True], "one slot came back"
    _ = await b.broker.complete(second, RESULT)
    assert await claim(a) == await claim(b) == "", "three were begun in this minute"
    assert await stands.counter(f"ratelimit:acme:{a.clock.now_ms // 1000}") == 3


async def test_the_table_of_the_seed_is_what_the_keys_and_limits_are_made_of(stands: Stands) -> None:
    config = parse_config("""
models: {m: {service_type: chat, operations: {x: /x}, provider: groq}}
providers:
  openrouter: {requests_per_minute: 200, tokens_per_minute: 100000, concurrent: 10}
  anthropic: {requests_per_minute: 60, tokens_per_minute: 80000, concurrent: 5}
  google: {requests_per_minute: 60, tokens_per_minute: 60000, concurrent: 5}
  groq: {requests_per_minute: 30, tokens_per_minute: 30000, concurrent: 3}
  cerebras: {requests_per_minute: 30, tokens_per_minute: 20000, concurrent: 3}
  deepseek: {requests_per_minute: 60, tokens_per_minute: 50000, concurrent: 5}
""")
    stand = stands.make(config.gate("m"))
    await submit(stand, *(f"j{number}" for number in range(5)))
    assert [bool(await claim(stand, str(number))) for number in range(5)] == [True, True, True, False, False]
    window = stand.clock.now_ms // 60_000 * 60
    assert await stands.counter(f"ratelimit:groq:{window}") == 3
    assert await stands.counter(f"ratelimit:groq:{window}:tokens") == 3_000


async def test_what_workers_of_the_seed_count_counts(stands: Stands) -> None:
    stand = stands.make(rate(10))
    second = stand.clock.now_ms // 1000
    stand.clock.advance(30_000)
    await stands.add_to_counter(f"ratelimit:acme:{second - 60}", 10)  # of the window before, half of it still counts
    await stands.add_to_counter(f"ratelimit:acme:{second}", 3)
    got = await admitted(stand, [0] * 4)
    assert got == [True, True, False, False]


@requirement("gate:tokens:corrected-by-usage")
async def test_tokens_that_were_not_used_come_back(stands: Stands) -> None:
    stand = stands.make(tokens(100))
    await submit(stand, "j1", "j2", estimate=80)
    first = await take(stand)
    assert first
    assert await claim(stand) == ""
    _ = await stand.broker.complete(first, RESULT._replace(tokens=20))
    assert (await stand.broker.get("j1")).tokens_used == 20
    assert await stands.counter(f"ratelimit:acme:{stand.clock.now_ms // 1000}:tokens") == 20
    stand = stands.make(tokens(100))  # another worker: it remembers no refusals
    assert await claim(stand) == "j2"


async def test_tokens_beyond_the_estimate_count_from_when_they_are_known(stands: Stands) -> None:
    stand = stands.make(tokens(100))
    await submit(stand, "j1", "j2", estimate=30)
    first = await take(stand)
    assert first
    stand.clock.advance(40_000)
    _ = await stand.broker.complete(first, RESULT._replace(tokens=130))
    stand.clock.advance(20_000)  # the estimate has left the window, the excess has not
    assert await claim(stand) == ""
    stand.clock.advance(39_999)
    assert await claim(stand) == ""
    stand.clock.advance(1)
    assert await claim(stand) == "j2"


async def test_a_counter_whose_life_ended_while_the_job_ran_is_not_made_anew(stands: Stands) -> None:
    stand = stands.make(Composite((tokens(1_000), rate(50))))
    await submit(stand, "j1")
    first = await take(stand)
    assert first
    await stands.forget_counters()
    stand.clock.advance(50_000)
    _ = await stand.broker.complete(first, RESULT._replace(tokens=3))
    assert await stands.counter(f"ratelimit:acme:{(stand.clock.now_ms - 50_000) // 1000}:tokens") is None
    for key in await stands.keys():
        assert stands.link
        assert await stands.link.call("TTL", key) >= 0, key


async def test_a_job_that_asks_for_more_than_the_limit_runs_alone(stands: Stands) -> None:
    stand = stands.make(tokens(100))
    await submit(stand, "huge", estimate=5_000)
    assert await claim(stand) == "huge"
    await submit(stand, "small", estimate=1)
    assert await claim(stand) == ""


# -- slots ------------------------------------------------------------------------------------------------------


async def _complete(stand: Stand, claim: Claim) -> None:
    _ = await stand.broker.complete(claim, RESULT)


async def _fail(stand: Stand, claim: Claim) -> None:
    _ = await stand.broker.fail(claim, Failure("inference_error", "no"))


async def _retry(stand: Stand, claim: Claim) -> None:
    _ = await stand.broker.fail(claim, Failure("inference_error", "no", 503, 20_000))


async def _release(stand: Stand, claim: Claim) -> None:
    _ = await stand.broker.release(claim)


async def _cancel(stand: Stand, claim: Claim) -> None:
    _ = await stand.broker.cancel(claim.job_id)
    _ = await stand.broker.release(claim)


async def _die(stand: Stand, claim: Claim) -> None:
    (owned,) = await stand.broker.owners()
    _ = await stand.broker.reap_dead(owned, "its connection closed")
    with pytest.raises(ClaimLost):
        _ = await stand.broker.renew(claim)


async def _lapse(stand: Stand, claim: Claim) -> None:
    stand.clock.advance(stand.limits.lease_ms)
    _ = await stand.broker.reap()
    assert (await stand.broker.get(claim.job_id)).status == "pending"


async def _revoke(stand: Stand, claim: Claim) -> None:
    stand.clock.advance(3_600_000)
    _ = await stand.broker.renew(claim)
    assert await stand.broker.revoke(grace_ms=0) == [claim.job_id]


async def _foreign(stand: Stand, claim: Claim) -> None:
    _ = await stand.broker.release(claim)
    _ = await stand.broker.complete_foreign(claim.job_id, stand.broker.limits and "completed")  # pyright: ignore[reportArgumentType]


Ending = Callable[[Stand, Claim], Awaitable[None]]


@requirement("gate:slot:given-back")
@pytest.mark.parametrize("end", [_complete, _fail, _retry, _release, _cancel, _die, _lapse, _revoke, _foreign])
async def test_every_way_out_of_a_run_gives_its_slot_back(stands: Stands, end: Ending) -> None:
    stand = stands.make(slots(1))
    await submit(stand, "j1")
    first = await take(stand)
    assert first
    await submit(stand, "j2")
    assert await claim(stand) == ""
    await end(stand, first)
    assert await claim(stand) != "", "the slot is free in the same step"
    assert await claim(stand, "d") == ""


async def test_a_slot_is_free_before_its_job_waits_again(stands: Stands) -> None:
    stand = stands.make(slots(1))
    await submit(stand, "j1")
    for number in range(5):
        found = await take(stand, f"c{number}")
        assert found
        assert found.job_id == "j1"
        _ = await stand.broker.release(found)


@requirement("gate:slot:lease")
async def test_the_slot_of_a_killed_worker_comes_back_with_its_lease_although_nobody_reaps(stands: Stands) -> None:
    stand = stands.make(slots(2))
    await submit(stand, "j1", "j2", "j3")
    assert await claim(stand, "a") == "j1"
    kept = await take(stand, "b")
    assert kept
    assert await claim(stand) == ""
    stand.clock.advance(30_000)
    _ = await stand.broker.renew(kept)
    stand.clock.advance(stand.limits.lease_ms - 30_000 - 1)
    assert await claim(stand) == ""
    stand.clock.advance(1)
    assert await claim(stand) == "j3"
    await submit(stand, "j4")
    assert await claim(stand, "d") == "", "the renewed slot is held"


async def test_a_freed_slot_calls_who_waits_longest(stands: Stands) -> None:
    stand = stands.make(slots(1))
    await submit(stand, "j1", "j2", "j3")
    first = await take(stand)
    assert first
    assert await claim(stand) == ""
    stand.clock.advance(100)
    _ = await stand.broker.complete(first, RESULT)
    await submit(stand, "fresh")
    assert await claim(stand) == "j2"


async def test_a_repeated_claim_takes_nothing_twice(stands: Stands) -> None:
    stand = stands.make(Composite((rate(10), slots(5), tokens(1_000))))
    await submit(stand, "j1", "j2")
    assert await stand.broker.claim(WORKER, "same")
    await stand.operator.move_back()
    again = await stand.broker.claim(WORKER, "same")
    assert again
    assert again.job_id == "j1"
    assert await stands.counter(f"ratelimit:acme:{stand.clock.now_ms // 1000}") == 1
    assert await stands.counter(f"ratelimit:acme:{stand.clock.now_ms // 1000}:tokens") == 100
