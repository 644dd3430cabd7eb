from __future__ import annotations

import asyncio

import pytest

from queuecore.storage.interruption import uninterrupted

pytestmark = pytest.mark.anyio


async def test_work_gives_its_result_or_its_error() -> None:
    async def work(error: Exception | None) -> int:
        if error:
            raise error
        return 5

    assert await uninterrupted(work(None)) == 5
    with pytest.raises(ValueError, match="mine"):
        _ = await uninterrupted(work(ValueError("mine")))


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_hears_of_it_once_the_work_has_ended(*, fails: bool) -> None:
    go, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        _ = await go.wait()
        ended.set()
        if fails:
            raise ValueError("of no interest any more")

    task = asyncio.create_task(uninterrupted(work()))
    await asyncio.sleep(0)
    for _ in range(3):
        _ = task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_after_the_grace_the_work_is_cancelled_too() -> None:
    stopped = asyncio.Event()

    async def work() -> None:
        try:
            _ = await asyncio.Event().wait()
        finally:
            stopped.set()

    task = asyncio.create_task(uninterrupted(work(), grace_seconds=0.01))
    await asyncio.sleep(0)
    _ = task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert stopped.is_set()
