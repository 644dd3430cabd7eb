"""Where a webhook may go (SSRF). Everything that is not global unicast is refused, by a list of our own.

The standard library's ``is_global`` calls NAT64, 6to4 and multicast global and ``is_private`` misses 100.64/10, so
neither is asked. IPv6 is refused but for 2000::/3, which leaves out loopback, mapped, compatible, NAT64, unique local,
link local and multicast at once; what is special inside of it is listed. An address is judged where it is dialled:
``check`` looks at the URL alone, ``judge`` at every address its name has at that moment.

``GATEWAY_WEBHOOK_ALLOW`` lists exceptions: addresses, networks, names, each alone or as host:port. To a target it lists
plain http is allowed too; the word ``http`` allows plain http everywhere.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from queuecore.errors import ConfigurationError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

LONGEST_URL: Final = 2048
PORTS: Final = {"http": 80, "https": 443}
_URL_TEXT: Final = re.compile(r"[!#-;=?-\[\]_a-z~]+\Z")  # RFC 3986: no space, quote, backslash, ^, `, {|} or <>
_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*\Z"
)
_NUMBER: Final = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)\Z")  # what the C resolver would take for (a part of) an address

DENIED_V4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
            "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
            "168.63.129.16/32",  # a cloud's host, on an address that the registry calls global
        ),
    )
)  # fmt: skip
GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
DENIED_V6: Final = tuple(
    map(
        ipaddress.IPv6Network,
        ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),  # Teredo, ORCHID; 6to4; examples
    )
)


class Refused(Exception):
    """The URL or an address behind it is not allowed; the text says why."""


class Target(NamedTuple):
    """The part of a URL that decides where it leads. ``literal`` is set when the host is an address."""

    scheme: str
    host: str
    port: int
    literal: Address | None

    @property
    def name(self) -> str:
        """What receivers share a limit by."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class Allow:
    """``GATEWAY_WEBHOOK_ALLOW``, read."""

    def __init__(self, text: str = "") -> None:
        """Read a list separated by commas or spaces.

        Raises:
            ConfigurationError: an entry is none of the kinds.
        """
        self.plain_http = False
        self._networks: list[tuple[Network, int | None]] = []
        self._names: set[tuple[str, int | None]] = set()
        for entry in re.split(r"[\s,]+", text.strip().lower()):
            if entry:
                self._add(entry)

    def _add(self, entry: str) -> None:
        if entry == "http":
            self.plain_http = True
            return
        given = re.sub(r"^https?://", "", entry).rstrip("/")
        try:
            self._networks.append((ipaddress.ip_network(given.strip("[]"), strict=False), None))
        except ValueError:
            pass
        else:
            return
        host, _, port_text = given.rpartition(":")
        host, port = (host, int(port_text)) if host and port_text.isdecimal() else (given, None)
        try:
            self._networks.append((ipaddress.ip_network(host.strip("[]"), strict=False), port))
        except ValueError:
            if not _NAME.match(host):
                raise ConfigurationError(
                    f"GATEWAY_WEBHOOK_ALLOW: {entry!r} is no address, network or name, nor the word http"
                ) from None
            self._names.add((host, port))

    @property
    def lists_any(self) -> bool:
        """Whether any address is listed."""
        return bool(self._networks)

    def name(self, target: Target) -> bool:
        """Whether the target is listed by its name: its addresses are not asked then."""
        return bool(self._names & {(target.host, None), (target.host, target.port)})

    def address(self, address: Address, port: int) -> bool:
        """Whether the address is listed."""
        return any(
            address.version == network.version and address in network and wanted in {None, port}
            for network, wanted in self._networks
        )


def check(url: str, allow: Allow) -> Target:
    """What the URL alone says.

    Raises:
        Refused: it can never be called, or its literal address is not allowed.
    """
    if len(url) > LONGEST_URL or not _URL_TEXT.match(url):
        raise Refused(f"at most {LONGEST_URL} printable ASCII characters of a URL, others percent-encoded")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Refused("an absolute http or https URL with a port from 1 to 65535") from error
    if parts.scheme not in PORTS or not parts.hostname or port == 0:
        raise Refused("an absolute http or https URL with a host")
    if parts.username is not None or parts.password is not None:
        raise Refused("no user or password in the URL")
    if parts.fragment or url.endswith("#"):
        raise Refused("no fragment in the URL")
    host = parts.hostname.removesuffix(".")
    literal = _literal(host, bracketed="[" in parts.netloc)
    target = Target(parts.scheme, host, port or PORTS[parts.scheme], literal)
    listed = allow.name(target) or (literal is not None and allow.address(literal, target.port))
    if literal is not None and not listed and is_denied(literal):
        raise Refused(f"{literal} is not a public address")
    # A name may lead to a listed address: that is known when it is resolved.
    if target.scheme == "http" and not (listed or allow.plain_http) and (literal is not None or not allow.lists_any):
        raise Refused("https is needed")
    return target


def _literal(host: str, *, bracketed: bool) -> Address | None:
    """The address that a host is.

    Raises:
        Refused: it is no name either, or an address in disguise (octal, decimal, short, with a zone).
    """
    if bracketed:
        try:
            return ipaddress.IPv6Address(host if "%" not in host else "")
        except ValueError as error:
            raise Refused("the host is no IPv6 address") from error
    if _NUMBER.match(host.rpartition(".")[2]):
        try:
            return ipaddress.IPv4Address(host)
        except ValueError as error:
            raise Refused("the host is no IPv4 address of four decimal numbers") from error
    if not _NAME.match(host):
        raise Refused("the host is no name of letters, digits and hyphens, at most 63 between dots")
    return None


def judge(target: Target, addresses: Iterable[str], allow: Allow) -> Sequence[str]:
    """The addresses that may be dialled: all of them, or none.

    Raises:
        Refused: one of them is not allowed, or plain http is not.
    """
    found = [ipaddress.ip_address(address.partition("%")[0]) for address in dict.fromkeys(addresses)]
    if not found:
        raise Refused("the name has no address")
    if not allow.name(target):
        listed = [allow.address(address, target.port) for address in found]
        for address, known in zip(found, listed, strict=True):
            if not known and is_denied(address):
                raise Refused(f"{target.host} leads to {address}, which is not a public address")
        if target.scheme == "http" and not allow.plain_http and not all(listed):
            raise Refused("https is needed")
    return [str(address) for address in found]


def is_denied(address: Address) -> bool:
    """Whether an address is anything but global unicast."""
    if isinstance(address, ipaddress.IPv4Address):
        return any(address in network for network in DENIED_V4)
    return address not in GLOBAL_V6 or any(address in network for network in DENIED_V6)
