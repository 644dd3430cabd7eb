"""Faults of the store on both sides of a run: an input late, short or wrong, a result it will not take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queuecore.errors import BlobCorrupt, BlobUnavailable
from queuecore.retry import Backoff
from queuecore.testing.blobs import MemoryStore
from queuecore.testing.clock import eventually
from relay import attempt, run, source
from relay.attempt import ExitCode

pytestmark = pytest.mark.anyio
Bench = Any  # conftest's


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (source, run):
        monkeypatch.setattr(module, "STORE_BACKOFF", Backoff(0.01, 0.02))
    monkeypatch.setattr(attempt, "_LEAST_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(attempt, "_PATIENCE_LEASES", 0)


class FaultyStore(MemoryStore):
    """Fails each of the next ``get_faults`` reads after so many bytes, and the next ``put_faults`` writes likewise."""

    def __init__(self, below: MemoryStore) -> None:
        super().__init__(chunk_bytes=1000)
        self.objects = below.objects
        self.get_faults: list[int] = []
        self.put_faults: list[int] = []
        self.offsets: list[int] = []
        self.corrupt_after: int | None = None

    @asynccontextmanager
    async def get(
        self, key: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        self.offsets.append(offset)
        fault = self.get_faults.pop(0) if self.get_faults else None
        async with super().get(key, offset=offset, length=length) as chunks:
            yield self._until(chunks, fault, key)

    async def _until(self, chunks: AsyncIterator[bytes], fault: int | None, key: str) -> AsyncIterator[bytes]:
        given = 0
        if fault == 0:
            raise BlobUnavailable(key, "away")
        async for chunk in chunks:
            given += len(chunk)
            yield chunk
            if fault is not None and given >= fault:
                raise BlobUnavailable(key, "away")
            if self.corrupt_after is not None and given >= self.corrupt_after:
                raise BlobCorrupt(key, "damaged")

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        fault = self.put_faults.pop(0) if self.put_faults else None
        if fault is None:
            return await super().put(key, chunks)
        given = 0
        async for chunk in chunks:
            given += len(chunk)
            if given >= fault:
                break
        raise BlobUnavailable(key, "away")


@pytest.fixture
def store(bench: Bench) -> FaultyStore:
    bench.relay_store = made = FaultyStore(bench.store)
    return made


async def test_a_read_that_breaks_goes_on_where_it_stopped_within_the_one_request(
    bench: Bench, store: FaultyStore
) -> None:
    content = bytes(range(250)) * 40  # ten chunks
    store.get_faults = [0, 3000, 0, 2000]
    job_id = await bench.submit(content)
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).status == "completed"
    assert store.offsets == [0, 0, 3000, 3000, 5000]
    assert [exchange.body for exchange in bench.model.exchanges] == [content]


async def test_a_read_that_breaks_behind_the_last_byte_is_whole(bench: Bench, store: FaultyStore) -> None:
    store.get_faults = [5000]
    job_id = await bench.submit(b"x" * 5000)
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).status == "completed"
    assert store.offsets == [0]


async def test_a_store_that_does_not_give_the_input_fails_the_job(bench: Bench, store: FaultyStore) -> None:
    store.get_faults = [0] * 500
    job_id = await bench.submit(b"x" * 5000)
    assert await bench.run() is ExitCode.DONE
    record = await bench.record(job_id)
    assert (record.status, record.error_code) == ("failed", "storage_unavailable")
    assert job_id not in record.error_message


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ({"input_sha256": "0" * 64}, "input_corrupt"),
        ({"input_size": "4999"}, "input_corrupt"),
        ({"input_size": "5001"}, "input_corrupt"),
        ({"input_key": "gone/input"}, "input_missing"),
    ],
)
@pytest.mark.parametrize("request_kind", ["raw", "multipart", "json"])
async def test_a_model_never_gets_a_whole_request_with_an_input_that_is_not_the_submitted_one(
    bench: Bench, store: FaultyStore, damage: dict[str, str], code: str, request_kind: str
) -> None:
    job_id = await bench.submit(b'"' + b"x" * 4998 + b'"', request=request_kind, **damage)
    assert await bench.run() is ExitCode.DONE
    record = await bench.record(job_id)
    assert (record.status, record.error_code) == ("failed", code)
    _ = await eventually(lambda: all(len(exchange.body) == 0 for exchange in bench.model.exchanges))  # none was whole
    assert bench.results() == []


async def test_an_input_found_damaged_on_the_way_fails_the_job(bench: Bench, store: FaultyStore) -> None:
    store.corrupt_after = 2000
    job_id = await bench.submit(b"x" * 5000)
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).error_code == "input_corrupt"


async def test_a_result_is_kept_and_stored_again_without_asking_the_model_again(
    bench: Bench, store: FaultyStore
) -> None:
    store.put_faults = [0, 3]
    job_id = await bench.submit()
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).status == "completed"
    assert await bench.result(job_id) == b"result"
    assert len(bench.model.exchanges) == 1


async def test_a_store_that_never_takes_the_result_fails_the_job(bench: Bench, store: FaultyStore) -> None:
    store.put_faults = [0] * 500
    job_id = await bench.submit()
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).error_code == "storage_unavailable"
    assert len(bench.model.exchanges) == 1


async def test_a_large_result_whose_store_fails_midway_fails_the_job_and_is_not_asked_for_again(
    bench: Bench, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SPOOLED_BYTES", 1000)

    async def answer(exchange: Any) -> None:
        _ = await exchange.read_body()
        await exchange.answer("200 OK", b"x" * 100_000)

    bench.model.handler = answer
    store.put_faults = [50_000]
    job_id = await bench.submit()
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).error_code == "storage_unavailable"
    assert len(bench.model.exchanges) == 1
    assert bench.results() == []


async def test_an_empty_input_is_sent_as_one(bench: Bench, store: FaultyStore) -> None:
    job_id = await bench.submit(b"")
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).status == "completed"
    assert bench.model.exchanges[0].header("content-length") == "0"


async def test_a_cancellation_while_the_result_is_stored_leaves_nothing_half_written(
    bench: Bench, store: FaultyStore
) -> None:
    storing = asyncio.Event()

    async def stuck(key: str, chunks: AsyncIterator[bytes]) -> int:
        storing.set()
        return await asyncio.Event().wait()

    store.put = stuck
    job_id = await bench.submit()
    running = bench.start()
    _ = await storing.wait()
    _ = await bench.broker.cancel(job_id)
    assert await asyncio.wait_for(running, 3) is ExitCode.DONE
    assert (await bench.record(job_id)).status == "cancelled"
    assert bench.results() == []
