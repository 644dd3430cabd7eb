"""What `relayq doctor` asks a Redis server that no service needs to know: rights, clock, who is connected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from redis.exceptions import ResponseError

from queuecore.redis.client import Link, PermissionMissing
from queuecore.redis.server import parse_info
from queuecore.settings import CommonSettings

# A harmless form of each command that some user of ours needs, and what is lost without it.
_PROBES: Final[Mapping[str, tuple[tuple[str | int, ...], str]]] = {
    "CLIENT ID": (("CLIENT", "ID"), "a relay cannot name its connection: its death shows only when its lease runs out"),
    "CLIENT LIST": (("CLIENT", "LIST", "ID", 1), "the reaper cannot see that a relay died: the lease decides"),
    "CLIENT UNBLOCK": (("CLIENT", "UNBLOCK", 0), "an idle relay ends within a second of SIGTERM, not at once"),
    "INFO": (("INFO", "server"), "no start-up check, and no fast death notice"),
    "CONFIG GET": (("CONFIG", "GET", "appendfsync"), "nobody can say which loss window applies"),
    "EVAL": (("EVAL", "return 1", 0), "nothing works: every verb is a script"),
}


class Diagnosis(NamedTuple):
    """``forbidden``: command -> what is lost without it. ``clients``: connections by process; None when hidden."""

    forbidden: Mapping[str, str]
    clients: Mapping[str, int] | None
    used_memory_bytes: int | None
    maxmemory_bytes: int | None  # 0: no limit


async def diagnose(common: CommonSettings) -> Diagnosis:
    """Ask as the user that ``common`` names.

    Raises:
        BrokerError: the server does not answer.
    """
    link = Link(common, name="relayq-doctor", limit=1)
    try:
        forbidden = {name: lost for name, (command, lost) in _PROBES.items() if not await _is_allowed(link, command)}
        memory = await _memory(link)
        return Diagnosis(forbidden, await _clients(link), memory.get("used_memory"), memory.get("maxmemory"))
    finally:
        await link.aclose()


async def _is_allowed(link: Link, command: tuple[str | int, ...]) -> bool:
    try:
        _ = await link.call(*command)
    except PermissionMissing:
        return False
    except ResponseError as error:  # renamed away, as some managed servers do
        return "unknown command" not in str(error).lower()
    return True


async def _memory(link: Link) -> Mapping[str, int]:
    try:
        info = parse_info(await link.call("INFO", "memory"))
    except (PermissionMissing, ResponseError):
        return {}
    return {name: int(info[name]) for name in ("used_memory", "maxmemory") if info.get(name, "").isdecimal()}


async def _clients(link: Link) -> Mapping[str, int] | None:
    """Connections by client name, without the process id behind a colon."""
    try:
        text: str = await link.call("CLIENT", "LIST")
    except (PermissionMissing, ResponseError):
        return None
    names = (word[5:] for line in text.splitlines() for word in line.split(" ") if word.startswith("name="))
    return Counter(name.partition(":")[0] for name in names if name)
