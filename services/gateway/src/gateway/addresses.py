"""Who is at the other end: the peer, or whom trusted proxies say they speak for.

``X-Forwarded-For`` is believed only from peers in ``GATEWAY_TRUSTED_PROXIES``, and only as far as they chain: from the
right, the first address that is no trusted proxy. Whoever else sends the header is known by its own address (h14).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request

from queuecore.errors import ConfigurationError

UNKNOWN: Final = "unknown"


class TrustedProxies:
    """``GATEWAY_TRUSTED_PROXIES``, read."""

    def __init__(self, text: str) -> None:
        """Read a list of addresses and networks separated by commas or spaces.

        Raises:
            ConfigurationError: an entry is neither.
        """
        try:
            self._networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = [
                ipaddress.ip_network(entry) for entry in re.split(r"[\s,]+", text.strip()) if entry
            ]
        except ValueError as error:
            raise ConfigurationError(f"GATEWAY_TRUSTED_PROXIES: addresses and networks: {error}") from error

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, text: str) -> bool:
        """Whether this peer may say for whom it speaks."""
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def address(self, request: Request) -> str:
        """The caller's address."""
        address = request.client.host if request.client else UNKNOWN
        hops = [hop.strip() for line in request.headers.getlist("x-forwarded-for") for hop in line.split(",")]
        while hops and self.trusts(address):
            address = hops.pop()
        return address
