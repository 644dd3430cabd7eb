from __future__ import annotations

import pytest

from queuecore.broker import Claim, NewJob, OwnedClaim, Result, Worker
from queuecore.errors import ClaimLost
from queuecore.job import Status
from queuecore.testing.operator import Stand
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio
LAPSE_MS = 60_001


async def take(stand: Stand, claim_id: str, client: str = "") -> Claim:
    claim = await stand.broker.claim(Worker("w", client), claim_id)
    assert claim is not None
    return claim


async def outcomes(stand: Stand) -> list[str]:
    return [one.outcome for one in await stand.broker.reap()]


async def test_a_dead_owners_job_goes_back_to_the_head_and_is_counted_once(stand: Stand) -> None:
    for name in ("a", "b"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    _ = await take(stand, "c1")
    assert await outcomes(stand) == ["live"]
    stand.clock.advance(LAPSE_MS)
    assert await outcomes(stand) == ["requeued"]
    assert await outcomes(stand) == []

    assert (await stand.operator.places()).pending == ["a", "b"]
    record = await stand.broker.get("a")
    assert (record.status, record.reaps, record.last_exit) == ("pending", 1, "lease lapsed")


@requirement("place:reap:older-first")
async def test_redelivered_jobs_keep_their_order_among_themselves(stand: Stand) -> None:
    for name in ("a", "b", "c", "d"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    for number in range(3):
        _ = await take(stand, f"c{number}")
    stand.clock.advance(LAPSE_MS)
    assert await outcomes(stand) == ["requeued"] * 3
    assert (await stand.operator.places()).pending == ["a", "b", "c", "d"]


@requirement(
    "poison:reap:deadletter-after-cap", "poison:reap:healthy-jobs-run", "deadletter:any:kept-for-its-retention"
)
async def test_the_death_past_the_cap_is_a_dead_letter_with_its_cause(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="poison", fields={}))
    stand.clock.advance(1)
    _ = await stand.broker.submit(NewJob(id="healthy", fields={}))
    for number in range(4):
        _ = await take(stand, f"c{number}")
        stand.clock.advance(LAPSE_MS)
        assert await outcomes(stand) == ["requeued" if number < 3 else "deadletter"]

    record = await stand.broker.get("poison")
    assert (record.status, record.error_code, record.reaps, record.claims) == ("failed", "worker_lost", 4, 4)
    assert record.expires_at == stand.clock.now_ms + 2_592_000_000
    assert (await stand.operator.places()) == (["healthy"], [], [], [], ["poison"])
    assert (await stand.broker.counts()).outbox == 1
    assert [one.id for one in await stand.broker.deadletters()] == ["poison"]


@requirement("reap:reap:stranded-pop-requeued-uncounted", "reap:gap:moved-entry-left-alone")
async def test_a_popped_entry_without_a_claim_has_its_grace_and_is_then_requeued_uncounted(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    assert await stand.operator.pop() == "a"
    assert await outcomes(stand) == ["waiting"]
    stand.clock.advance(4_999)
    assert await outcomes(stand) == ["waiting"]
    stand.clock.advance(1)
    assert await outcomes(stand) == ["requeued"]
    record = await stand.broker.get("a")
    assert (record.reaps, record.claims, record.status) == (0, 0, "pending")


async def test_entries_whose_record_is_gone_or_terminal_are_dropped(stand: Stand) -> None:
    for name in ("gone", "done"):
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    _ = await stand.broker.cancel("done")
    await stand.operator.push_processing("done")
    _ = await stand.operator.pop()
    await stand.operator.delete_record("gone")

    assert sorted(await outcomes(stand)) == ["dropped", "dropped"]
    assert (await stand.operator.places()).processing == []
    assert (await stand.broker.get("done")).status == "cancelled"


async def test_a_foreign_claim_is_adopted_so_that_its_deaths_count(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    for death in range(4):
        assert await stand.operator.pop() == "a"
        await stand.operator.set_lease("a")
        assert await outcomes(stand) == ["adopted"]
        assert await outcomes(stand) == ["live"]
        record = await stand.broker.get("a")
        assert (record.status, record.owner, record.fence) == ("processing", "foreign", death + 1)
        await stand.operator.delete_lease("a")
        assert await outcomes(stand) == ["waiting"], "a foreign relay publishes before it removes its entry"
        stand.clock.advance(5_000)
        assert await outcomes(stand) == ["requeued" if death < 3 else "deadletter"]


@requirement("reap:reap:live-lease-left-alone")
async def test_a_late_foreign_delete_cannot_take_our_job_away(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    claim = await take(stand, "c1")
    await stand.operator.delete_lease("a")
    assert await outcomes(stand) == ["live"]
    _ = await stand.broker.renew(claim)


@requirement("death:reconnect:owner-keeps-its-job")
async def test_a_death_notice_reaps_at_once_but_only_the_registered_connection(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    claim = await take(stand, "c1", "run:1")
    (owned,) = await stand.broker.owners()
    assert owned == OwnedClaim("a", 1, "c1", "run:1")

    _ = await stand.broker.renew(claim, "run:2")  # its connection was cut and it registered anew
    assert (await stand.broker.reap_dead(owned, "its connection closed")).outcome == "live"
    assert (await stand.broker.reap_dead(owned._replace(client="run:2", fence=9), "x")).outcome == "live"
    assert (await stand.broker.reap_dead(owned._replace(client="run:2", claim_id="c9"), "x")).outcome == "live"

    dead = await stand.broker.reap_dead(owned._replace(client="run:2"), "its connection closed")
    assert dead.outcome == "requeued"
    assert (await stand.broker.get("a")).last_exit == "its connection closed"
    with pytest.raises(ClaimLost):
        _ = await stand.broker.renew(claim)
    assert (await stand.broker.reap_dead(owned._replace(client="run:2"), "again")).outcome == "skipped"
    assert (await stand.broker.get("a")).reaps == 1


@requirement("reap:reap:gone-or-terminal-dropped", "verdict:any:one-per-generation")
async def test_a_finished_job_is_never_taken_back(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    claim = await take(stand, "c1")
    assert await stand.broker.complete(claim, Result("k", 1, "t/t", "0")) is Status.COMPLETED
    await stand.operator.push_processing("a")
    stand.clock.advance(2 * LAPSE_MS)
    assert await outcomes(stand) == ["dropped"]
    assert (await stand.broker.get("a")).status == "completed"


async def test_a_requeue_into_a_paused_queue_stays_hidden(stand: Stand) -> None:
    _ = await stand.broker.submit(NewJob(id="a", fields={}))
    _ = await take(stand, "c1")
    await stand.broker.pause()
    stand.clock.advance(LAPSE_MS)
    assert await outcomes(stand) == ["requeued"]
    assert (await stand.operator.places()).paused == ["a"]


@requirement("reap:any:every-entry-in-turn")
async def test_each_pass_looks_at_the_next_page_so_that_every_entry_has_its_turn(stand: Stand) -> None:
    for name in "abcde":
        _ = await stand.broker.submit(NewJob(id=name, fields={}))
    claims = [await take(stand, f"c{number}", f"run:{number}") for number in range(5)]
    stand.clock.advance(LAPSE_MS - 1_000)
    for claim in claims[:4]:
        _ = await stand.broker.renew(claim)
    stand.clock.advance(1_000)

    reaped = [one for _ in range(4) for one in await stand.broker.reap(limit=2)]
    owners = [one.job_id for _ in range(4) for one in await stand.broker.owners(limit=2)]

    assert ("e", "requeued") in reaped
    assert set(owners) == set("abcd")
    for claim in claims[:4]:
        _ = await stand.broker.renew(claim)
    stand.clock.advance(3_600_000)
    assert sorted([one for _ in range(4) for one in await stand.broker.revoke(grace_ms=0, limit=2)]) == list("abcd")
