"""One stack per data directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from relayq.dev.plan import StackError


@contextmanager
def locked(directory: Path) -> Generator[None, None, None]:
    """Hold the directory. The kernel lets go of it when this process ends, however it ends.

    Raises:
        StackError: another process holds it, or it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StackError(f"--data {directory}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
            raise StackError(
                f"another stack (pid {owner}) runs on {directory}; stop it, or give --data another directory"
            ) from error
        os.ftruncate(handle, 0)
        _ = os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
