"""Objects as files below one directory: the embedded store.

An object is written to a file in ``.unfinished``, synced, and renamed to its place: it is there whole or not at all,
and survives the host's crash once ``put`` has returned. File work is done in threads, a mebibyte at a time.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import secrets
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from queuecore.blobs import BlobEntry, BlobStore
from queuecore.clock import monotonic
from queuecore.errors import BlobCorrupt, BlobNotFound, BlobUnavailable
from queuecore.storage.interruption import uninterrupted
from queuecore.storage.object_key import check_key
from queuecore.storage.probe import probe
from queuecore.storage.unfinished import Unfinished

_PIECE_BYTES: Final = 1 << 20  # a thread hop costs about 0.1 ms; a mebibyte takes longer than that
_COMMIT_ATTEMPTS: Final = 10
_ADVICE: Final = {
    errno.ENOENT: "the directory of BLOBS_URL is gone: mount it",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "access denied: the directory of BLOBS_URL must belong to the user of this process",
    errno.EPERM: "access denied: the directory of BLOBS_URL must belong to the user of this process",
    errno.EEXIST: "the key of another object is a folder of this one",
    errno.ENOTDIR: "the key of another object is a folder of this one",
    errno.EISDIR: "the key of another object is below this one",
    errno.EMFILE: "this process has too many files open",
}

P = ParamSpec("P")
T = TypeVar("T")


class DirectoryStore(BlobStore):
    """Objects below ``root``, which must exist; their keys are their relative paths."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = monotonic) -> None:
        self._root = root
        self._workshop = root / ".unfinished"
        self._unfinished: Unfinished[str] = Unfinished(clock)

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        """Write, sync, rename. Only the rename makes the object visible, and nothing can interrupt it."""
        target = self._path(key)
        writer = _Writer(self._workshop / secrets.token_hex(16))
        stored = False
        try:
            await _in_thread(key, writer.create)
            async for chunk in chunks:
                if writer.take(chunk):
                    await _in_thread(key, writer.write)
            await _in_thread(key, self._commit, writer, target)
            stored = True
        finally:
            if not stored:  # no thread uses the file any more: each one was waited for, cancelled or not
                await _in_thread(key, self._tidy, writer, target)
        return writer.size

    @asynccontextmanager
    async def get(
        self, key: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """The object as it is when opened; a later ``put`` or ``delete`` changes nothing for this reader."""
        reader = _Reader(key, self._path(key))
        try:
            await self._look(key, reader.open, offset, length)
            async with aclosing(_pieces(reader)) as pieces:
                yield pieces
        finally:
            reader.close()

    async def size(self, key: str) -> int:
        """Bytes of the file."""
        return await self._look(key, _size, self._path(key))

    async def delete(self, key: str) -> None:
        """Unlink the file and the folders that it leaves empty."""
        await _in_thread(key, self._remove, self._path(key))

    async def scan(self, prefix: str = "", *, after: str = "") -> AsyncIterator[BlobEntry]:
        """Folder by folder: what is kept in memory is one folder's names a level."""
        levels = [await _in_thread(prefix, self._entries, "", prefix, after)]
        while levels:
            if not levels[-1]:
                _ = levels.pop()
                continue
            entry = levels[-1].pop()
            if entry.key.endswith("/"):
                levels.append(await _in_thread(entry.key, self._entries, entry.key, prefix, after))
            else:
                yield entry

    async def abort_unfinished(self, *, older_than_seconds: float) -> int:
        """Remove half-written files that have not grown for this long, counted from when this store first saw them."""
        still = self._unfinished.still_seconds(await _in_thread("", self._half_written))
        dead = [name for name, seconds in still.items() if seconds >= older_than_seconds]
        for name in dead:
            await _in_thread(name, (self._workshop / name).unlink, missing_ok=True)
        return len(dead)

    async def check(self) -> None:
        """Put, get and delete a probe object."""
        await probe(self)

    async def aclose(self) -> None:
        """Nothing to close: each call closes what it opened."""

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    async def _look(self, key: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function`` in a thread; a missing file is a missing object, unless the whole store is missing."""
        try:
            return await uninterrupted(asyncio.to_thread(function, *args, **kwargs))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            if await asyncio.to_thread(self._root.is_dir):
                raise BlobNotFound(key) from error
            raise _unavailable(key, error) from error
        except OSError as error:
            raise _unavailable(key, error) from error

    def _commit(self, writer: _Writer, target: Path) -> None:
        writer.finish()
        writer.close()
        for attempt in range(1, _COMMIT_ATTEMPTS + 1):
            self._make_folder(target.parent)
            try:
                _ = writer.path.replace(target)
                break
            except FileNotFoundError:
                # a delete of the folder's last object removed the folder in this instant
                if attempt == _COMMIT_ATTEMPTS or not writer.path.exists():
                    raise
        _sync_folder(target.parent)

    def _tidy(self, writer: _Writer, target: Path) -> None:
        writer.close()
        with suppress(OSError):  # never made, or left to `abort_unfinished`: the first error is the one that counts
            writer.path.unlink()
            self._remove_empty(target.parent)

    def _make_folder(self, folder: Path) -> None:
        if folder == self._root or folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(folder.parent)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        self._remove_empty(path.parent)

    def _remove_empty(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone
                return
            folder = folder.parent

    def _entries(self, folder: str, prefix: str, after: str) -> list[BlobEntry]:
        """What lies in ``folder`` and may match, last key first; a folder's key ends with a slash."""
        found: list[BlobEntry] = []
        vanished = (FileNotFoundError, NotADirectoryError) if folder else ()
        with suppress(*vanished), os.scandir(self._root / folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or (not folder and entry.name == "lost+found"):
                    continue
                key = folder + entry.name
                if entry.is_dir(follow_symlinks=False):
                    inside = f"{key}/"  # sorts as the keys in it do: `a-b` comes before `a/b`
                    if (inside.startswith(prefix) or prefix.startswith(inside)) and (
                        inside > after or after.startswith(inside)
                    ):
                        found.append(BlobEntry(inside, 0))
                elif key.startswith(prefix) and key > after:
                    with suppress(FileNotFoundError):
                        found.append(BlobEntry(key, entry.stat(follow_symlinks=False).st_size))
        found.sort(reverse=True)
        return found

    def _half_written(self) -> dict[str, object]:
        states: dict[str, object] = {}
        with suppress(FileNotFoundError), os.scandir(self._workshop) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    states[entry.name] = (facts.st_size, facts.st_mtime_ns)
        return states


class _Writer:
    """A file in the making; its blocking methods run in a thread, one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._file: io.FileIO | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def create(self) -> None:
        """Make the empty file; its folder too, but not the store's root."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self._file = io.FileIO(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w")

    def take(self, chunk: bytes) -> bool:
        """Keep ``chunk`` for the next ``write``; whether it is time for one."""
        self._waiting.append(chunk)
        self._waiting_bytes += len(chunk)
        self.size += len(chunk)
        return self._waiting_bytes >= _PIECE_BYTES

    def write(self) -> None:
        """Write what was taken."""
        assert self._file is not None  # noqa: S101  `create` came first
        for chunk in self._waiting:
            view = memoryview(chunk)
            while view:
                view = view[self._file.write(view) :]
        self._waiting = []
        self._waiting_bytes = 0

    def finish(self) -> None:
        """Write the rest; returns when all of it is on the disk."""
        self.write()
        assert self._file is not None  # noqa: S101  as above
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


class _Reader:
    """A file being read; its blocking methods run in a thread, one at a time."""

    def __init__(self, key: str, path: Path) -> None:
        self._key = key
        self._path = path
        self._file: io.FileIO | None = None
        self._left = 0

    def open(self, offset: int, length: int | None) -> None:
        """Go to ``offset``."""
        self._file = io.FileIO(self._path)
        rest = max(0, os.fstat(self._file.fileno()).st_size - offset)
        self._left = rest if length is None else min(rest, length)
        _ = self._file.seek(offset)

    def read(self) -> bytes:
        """The next piece; empty at the end of the range."""
        assert self._file is not None  # noqa: S101  `open` came first
        piece = self._file.read(min(self._left, _PIECE_BYTES)) or b""
        if not piece and self._left:
            raise BlobCorrupt(self._key, f"the file lost its last {self._left} bytes while it was read")
        self._left -= len(piece)
        return piece

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


async def _pieces(reader: _Reader) -> AsyncGenerator[bytes, None]:
    while piece := await _in_thread("", reader.read):
        yield piece


async def _in_thread(key: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking file work; a cancelled caller waits until the thread is done with the file."""
    try:
        return await uninterrupted(asyncio.to_thread(function, *args, **kwargs))
    except OSError as error:
        raise _unavailable(key, error) from error


def _unavailable(key: str, error: OSError) -> BlobUnavailable:
    return BlobUnavailable(key, _ADVICE.get(error.errno or 0) or error.strerror or str(error))


def _size(path: Path) -> int:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder")
    return facts.st_size


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
