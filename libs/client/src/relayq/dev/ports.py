"""TCP ports of the loopback."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below the range from which kernels take ports for outgoing connections: none of those can be faster than our server.
FIRST: Final = 20_000
LAST: Final = 31_999


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now, all different.

    Raises:
        OSError: there are not that many.
    """
    candidates = random.sample(range(FIRST, LAST + 1), LAST - FIRST + 1)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            return found
        if is_free(port):
            found.append(port)
    raise OSError(f"no free port from {FIRST} to {LAST}")


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
