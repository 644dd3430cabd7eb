"""Load the Lua scripts and call them by the names their headers give.

Each ``lua/<verb>.lua`` is one atomic transition. Its header lists KEYS and ARGV in order and callers fill in that list
by name, so no call site can swap two of them. ``@include place`` is the transport's own file: the same verbs run over
every transport. Scripts are addressed by their content hash, so two releases can share one Redis (docs/adr/0002).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final, NamedTuple, cast

from redis.exceptions import NoScriptError, ResponseError

from queuecore.errors import ScriptContractError
from queuecore.redis.client import Link

LUA: Final = resources.files("queuecore.redis") / "lua"
PARAMETER: Final = re.compile(r"^-- (KEYS|ARGV)\[(\d+)\]\s+(\w+)", re.MULTILINE)
_INCLUDE: Final = re.compile(r"^-- @include (\w+)$", re.MULTILINE)


class Script(NamedTuple):
    """One Lua file and the parameter names its header declares."""

    name: str
    source: str
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]

    async def __call__(self, link: Link, params: Mapping[str, str | int]) -> list[str]:
        """Run it; ``params`` holds exactly the names in the header.

        Raises:
            BrokerUnavailable: it did not run.
            OutcomeUnknown: the link broke; it ran whole or not at all.
        """
        if set(params) != {*self.keys, *self.args}:
            raise TypeError(f"{self.name} takes {self.keys + self.args}, got {tuple(params)}")
        values = [params[name] for name in self.keys + self.args]
        try:
            try:
                reply = await link.call("EVALSHA", self.sha, len(self.keys), *values)
            except NoScriptError:  # it did not run: the server restarted or was flushed
                reply = await link.call("EVAL", self.source, len(self.keys), *values)
        except ResponseError as error:
            raise ScriptContractError(f"{self.name}: {error}") from error
        return cast("list[str]", reply)


@cache
def load(name: str, transport: str) -> Script:
    """Read ``lua/<name>.lua`` and put its includes in place."""
    text = (LUA / f"{name}.lua").read_text("utf-8")
    found: list[tuple[str, str, str]] = PARAMETER.findall(text)

    def included(match: re.Match[str]) -> str:
        part = f"place_{transport}" if match[1] == "place" else match[1]
        return _INCLUDE.sub(included, (LUA / "_include" / f"{part}.lua").read_text("utf-8"))

    source = _INCLUDE.sub(included, text)
    return Script(
        name=name,
        source=source,
        sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(),
        keys=tuple(label for kind, _, label in found if kind == "KEYS"),
        args=tuple(label for kind, _, label in found if kind == "ARGV"),
    )


def names() -> list[str]:
    """Every verb that has a script."""
    return sorted(path.name.removesuffix(".lua") for path in LUA.iterdir() if path.name.endswith(".lua"))
