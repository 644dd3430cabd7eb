"""API keys: ``GATEWAY_API_KEYS_FILE``, YAML, read again when it changes.

    tenants:
      acme: {requests_per_minute: 600, upload_bytes_per_day: 10000000000, pending_jobs: 500}    # each is optional
    keys:
      - {name: ci, tenant: acme, sha256: 9f86d0…, rights: [submit, read, cancel]}

A key is 32 random bytes as text (``relayq_`` and base64url); only its SHA-256 is kept. A slow hash would add nothing:
nobody guesses 256 bits. To make one: ``python -c "import secrets; print('relayq_' + secrets.token_urlsafe(32))"``, and
its hash with ``printf %s "$KEY" | sha256sum``. A file that cannot be read anew is said in the log and the keys of
before stay, so a typing error locks nobody out.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from queuecore import clock
from queuecore.errors import ConfigurationError
from queuecore.names import TOKEN
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
Right: TypeAlias = Literal["submit", "read", "cancel", "priority"]
EVERYTHING: Final[frozenset[Right]] = frozenset({"submit", "read", "cancel", "priority"})
USUAL: Final[tuple[Right, ...]] = ("submit", "read", "cancel")
Amount = Annotated[int, Meta(ge=1)]
_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one tenant, over all its keys and all gateways."""

    requests_per_minute: Amount | None = None
    upload_bytes_per_day: Amount | None = None
    pending_jobs: Amount | None = None  # that may wait in the queue of one model; atomic with submit


class _Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    tenant: str
    sha256: str
    rights: tuple[Right, ...] = USUAL


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[_Key, ...]
    tenants: Mapping[str, Limits] = {}


class Caller(msgspec.Struct, frozen=True):
    """Who calls, and what they may."""

    tenant: str
    key: str = ""
    rights: frozenset[Right] = EVERYTHING
    limits: Limits = Limits()


class KeyFile:
    """The keys by their digest."""

    def __init__(self, path: str) -> None:
        """Read the file.

        Raises:
            ConfigurationError: it cannot be read, or breaks a rule; the text names it.
        """
        self._path = Path(path)
        self._version: tuple[int, int, int] | None = None
        self._looked_at = clock.monotonic()
        self._callers = self._read()

    def caller(self, key: str) -> Caller | None:
        """Whose key this is; None when it is nobody's."""
        if clock.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = clock.monotonic()
            try:
                if self._stat() != self._version:
                    self._callers = self._read()
            except (OSError, ConfigurationError) as error:
                _log.error("API keys were not read anew: %s", error, extra={"event": Event.CONFIGURATION_REFUSED})
        # A lookup by digest: how long it takes says nothing of the key.
        return self._callers.get(hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest())

    def _stat(self) -> tuple[int, int, int]:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> Mapping[str, Caller]:
        where = f"GATEWAY_API_KEYS_FILE {self._path}"
        try:
            self._version = self._stat()
            found = msgspec.yaml.decode(self._path.read_bytes(), type=_File)
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise ConfigurationError(f"{where}: {str(error).splitlines()[0]}") from error
        callers: dict[str, Caller] = {}
        for key in found.keys:
            if not _SHA256.match(key.sha256):
                raise ConfigurationError(f"{where}: key {key.name!r}: sha256: 64 hexadecimal digits in lower case")
            if not TOKEN.match(key.tenant):
                raise ConfigurationError(f"{where}: key {key.name!r}: tenant: printable ASCII without spaces")
            if key.sha256 in callers:
                raise ConfigurationError(f"{where}: key {key.name!r}: its sha256 is there twice")
            limits = found.tenants.get(key.tenant, Limits())
            callers[key.sha256] = Caller(key.tenant, key.name, frozenset(key.rights), limits)
        return callers
