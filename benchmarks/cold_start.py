"""From exec to the first BLMOVE of a relay, beside `python -c "import redis.asyncio, uvloop"`, in interleaved rounds.

The relay's moment is read from the server: MONITOR's line of the BLMOVE. The anchor is the same interpreter importing
the two libraries that a relay cannot do without, and ending.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from queuecore.testing.servers import ValkeyProcess
from queuecore.testing.yard import Mock

ROUNDS = 15
MODELS = "models:\n  m: {service_type: s, operations: {o: /echo}}\n"


class ColdStart(NamedTuple):
    """Medians of one run, milliseconds."""

    relay_ms: float
    anchor_ms: float

    @property
    def ratio(self) -> float:
        return self.relay_ms / self.anchor_ms


def relay_ms(server: ValkeyProcess, mock: Mock, directory: Path) -> float:
    with socket.create_connection(("127.0.0.1", server.port)) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        assert monitor.recv(64).startswith(b"+OK")
        environment = os.environ | {
            "REDIS_URL": server.url, "RELAY_MODEL": "m", "RELAY_INFERENCE_URL": mock.url, "RELAY_METRICS_PORT": "0",
            "BLOBS_URL": directory.as_uri(), "MODELS_FILE": str(directory / "models.yaml"),
        }  # fmt: skip
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "relay"], env=environment, stdout=subprocess.DEVNULL)
        seen = b""
        while b"BLMOVE" not in seen.upper():
            seen = seen[-64:] + monitor.recv(65536)
        took = (time.perf_counter() - started) * 1000
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    return took


def anchor_ms() -> float:
    started = time.perf_counter()
    _ = subprocess.run([sys.executable, "-c", "import redis.asyncio, uvloop"], check=True)
    return (time.perf_counter() - started) * 1000


def measure(rounds: int = ROUNDS) -> ColdStart:
    with ValkeyProcess() as server, Mock() as mock, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        _ = (directory / "models.yaml").write_text(MODELS, "utf-8")
        pairs = [(relay_ms(server, mock, directory), anchor_ms()) for _ in range(rounds + 1)][1:]
    return ColdStart(*(statistics.median(column) for column in zip(*pairs, strict=True)))


def main() -> None:
    result = measure()
    print(f"relay, exec to first BLMOVE   {result.relay_ms:7.0f} ms")
    print(f"import redis.asyncio, uvloop  {result.anchor_ms:7.0f} ms")
    print(f"ratio                         {result.ratio:7.2f}   (target 1.5)")


if __name__ == "__main__":
    main()
