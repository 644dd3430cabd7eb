from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queuecore.errors import BlobCorrupt, BlobNotFound, BlobUnavailable
from queuecore.storage import directory
from queuecore.storage.directory import DirectoryStore

pytestmark = pytest.mark.anyio

MIB = 1 << 20
BAD_KEYS = ["", "/etc/passwd", "../outside", "a/../../outside", "a/./b", "a//b", "a/", "nul\0byte", ".unfinished/x",
            "a/.hidden", "line\nbreak", "back\\slash", "x" * 901, "surrogate\udcff"]  # fmt: skip


async def stream(content: bytes, piece_bytes: int = 65_536) -> AsyncIterator[bytes]:
    for start in range(0, len(content), piece_bytes):
        yield content[start : start + piece_bytes]


def below(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*")]


def remove(folder: Path) -> None:
    folder.rmdir()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> DirectoryStore:
    return DirectoryStore(root)


@pytest.mark.parametrize("key", BAD_KEYS)
async def test_a_key_that_could_reach_outside_is_refused_by_every_verb(
    store: DirectoryStore, root: Path, key: str
) -> None:
    with pytest.raises(ValueError, match="object key"):
        _ = await store.put(key, stream(b"x"))
    with pytest.raises(ValueError, match="object key"):
        async with store.get(key):
            pytest.fail("entered")
    with pytest.raises(ValueError, match="object key"):
        _ = await store.size(key)
    with pytest.raises(ValueError, match="object key"):
        await store.delete(key)
    assert below(root.parent) == ["store"]


async def test_an_object_is_invisible_until_it_is_whole(store: DirectoryStore) -> None:
    seen: list[str] = []

    async def watched() -> AsyncIterator[bytes]:
        yield bytes(3 * MIB)
        seen.extend([entry.key async for entry in store.scan()])
        with pytest.raises(BlobNotFound):
            _ = await store.size("job/input")
        yield b"end"

    _ = await store.put("job/input", watched())
    assert seen == []
    assert await store.size("job/input") == 3 * MIB + 3


async def test_an_object_is_on_the_disk_before_it_is_visible(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(descriptor: int) -> None:
        steps.append("fsync")
        fsync(descriptor)

    def watched_replace(self: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    _ = await store.put("job/input", stream(b"x"))
    assert steps[0] == "fsync"  # the bytes
    assert "rename" in steps[1:-1]
    assert steps[-1] == "fsync"  # the folder that names them


async def test_objects_are_readable_by_their_owner_only(store: DirectoryStore, root: Path) -> None:
    _ = await store.put("job/input", stream(b"x"))
    assert (root / "job/input").stat().st_mode & 0o777 == 0o600
    assert (root / "job").stat().st_mode & 0o777 == 0o700


async def test_deleting_the_last_object_of_a_job_removes_its_folders(store: DirectoryStore, root: Path) -> None:
    _ = await store.put("job/1-claim/result", stream(b"x"))
    await store.delete("job/1-claim/result")
    assert below(root) == [".unfinished"]


async def test_a_failed_put_removes_the_folders_it_made(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(BlobUnavailable, match="the disk is full"):
        _ = await store.put("job/1-claim/result", stream(b"x"))
    assert below(root) == [".unfinished"]


async def test_puts_and_deletes_of_neighbours_at_once_never_fail(store: DirectoryStore) -> None:
    async def churn(number: int) -> None:
        for _ in range(40):
            _ = await store.put(f"job/{number}", stream(b"x"))
            await store.delete(f"job/{number}")

    _ = await asyncio.gather(*(churn(number) for number in range(6)))
    assert [entry async for entry in store.scan()] == []


async def test_a_reader_keeps_the_object_it_opened(store: DirectoryStore) -> None:
    _ = await store.put("job/input", stream(b"a" * 3 * MIB))
    async with store.get("job/input") as chunks:
        first = await anext(chunks)
        _ = await store.put("job/input", stream(b"b"))
        await store.delete("job/input")
        rest = b"".join([chunk async for chunk in chunks])
    assert first + rest == b"a" * 3 * MIB


async def test_a_file_that_shrinks_while_it_is_read_is_corrupt(store: DirectoryStore, root: Path) -> None:
    _ = await store.put("job/input", stream(bytes(3 * MIB)))
    with pytest.raises(BlobCorrupt, match="lost its last"):  # noqa: PT012  the reading is what raises
        async with store.get("job/input") as chunks:
            _ = await anext(chunks)
            os.truncate(root / "job/input", MIB + 5)
            _ = [chunk async for chunk in chunks]


async def test_a_missing_root_is_not_a_missing_object(store: DirectoryStore, root: Path) -> None:
    remove(root)
    with pytest.raises(BlobUnavailable, match="BLOBS_URL is gone"):
        _ = await store.put("job/input", stream(b"x"))
    with pytest.raises(BlobUnavailable, match="BLOBS_URL is gone"):
        _ = await store.size("job/input")
    with pytest.raises(BlobUnavailable, match="BLOBS_URL is gone"):
        async with store.get("job/input"):
            pytest.fail("entered")
    with pytest.raises(BlobUnavailable, match="BLOBS_URL is gone"):
        _ = [entry async for entry in store.scan()]
    with pytest.raises(BlobUnavailable, match="BLOBS_URL is gone"):
        await store.check()
    assert below(root.parent) == []


async def test_a_file_that_may_not_be_read_is_not_missing(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ = await store.put("job/input", stream(b"x"))

    def refused(path: Path) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(directory, "_size", refused)
    with pytest.raises(BlobUnavailable, match="must belong to the user"):
        _ = await store.size("job/input")


async def test_a_folder_that_vanishes_again_and_again_ends_in_an_error(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def vanishing(self: Path, target: Path) -> Path:
        nonlocal tries
        tries += 1
        raise FileNotFoundError(errno.ENOENT, "gone")

    monkeypatch.setattr(Path, "replace", vanishing)
    with pytest.raises(BlobUnavailable):
        _ = await store.put("job/input", stream(b"x"))
    assert tries == 10
    assert below(root) == [".unfinished"]


async def test_a_key_below_another_object_is_refused_in_words(store: DirectoryStore) -> None:
    _ = await store.put("job/input", stream(b"x"))
    with pytest.raises(BlobUnavailable, match="a folder of this one"):
        _ = await store.put("job/input/deeper", stream(b"x"))
    with pytest.raises(BlobUnavailable, match="below this one"):
        _ = await store.put("job", stream(b"x"))
    for key in ("job", "job/input/deeper"):
        with pytest.raises(BlobNotFound):
            _ = await store.size(key)
        await store.delete(key)
    assert [entry.key async for entry in store.scan()] == ["job/input"]


async def test_what_is_not_ours_is_not_listed(store: DirectoryStore, root: Path) -> None:
    _ = await store.put("job/input", stream(b"x"))
    (root / "lost+found").mkdir(0o000)
    (root / ".snapshot").mkdir()
    (root / ".snapshot" / "old").touch()
    assert [entry.key async for entry in store.scan()] == ["job/input"]


async def test_half_written_files_of_a_killed_writer_go_after_standing_still(root: Path) -> None:
    now = 0.0
    store = DirectoryStore(root, clock=lambda: now)
    (root / ".unfinished").mkdir()
    dead, living = root / ".unfinished" / "dead", root / ".unfinished" / "living"
    _ = dead.write_bytes(b"x")
    _ = living.write_bytes(b"x")
    os.utime(dead, (0, 0))  # the file's own date says nothing
    assert await store.abort_unfinished(older_than_seconds=60) == 0
    now = 59.0
    _ = living.write_bytes(b"xx")
    assert await store.abort_unfinished(older_than_seconds=60) == 0
    now = 60.0
    assert await store.abort_unfinished(older_than_seconds=60) == 1
    assert (dead.exists(), living.exists()) == (False, True)
    now = 119.0
    assert await store.abort_unfinished(older_than_seconds=60) == 1


async def test_cancelling_during_a_write_waits_for_the_thread_before_the_file_is_closed(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, may_go = threading.Event(), threading.Event()
    write = directory._Writer.write

    def slow_write(self: directory._Writer) -> None:
        entered.set()
        _ = may_go.wait(5)
        write(self)  # fails if the file was closed meanwhile

    monkeypatch.setattr(directory._Writer, "write", slow_write)
    task = asyncio.create_task(store.put("job/input", stream(bytes(2 * MIB))))
    _ = await asyncio.to_thread(entered.wait, 5)
    _ = task.cancel()
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done
    may_go.set()
    with pytest.raises(asyncio.CancelledError):
        _ = await task
    assert below(root) == [".unfinished"]
