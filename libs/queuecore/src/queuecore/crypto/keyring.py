"""The keys: the first of the ring encrypts, every one decrypts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from queuecore.crypto.header import KEY_ID
from queuecore.errors import ConfigurationError, KeyUnknown

KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """One key; its bytes are in no ``repr``."""

    key_id: str
    secret: bytes = field(repr=False)


class KeyRing:
    """Keys by id, the first being the current one. ``KeyRing.parse`` makes it."""

    __slots__ = ("_keys", "current")

    def __init__(self, keys: Sequence[EncryptionKey]) -> None:
        self.current = keys[0]
        self._keys = {key.key_id: key for key in keys}

    @classmethod
    def parse(cls, text: str, source: str) -> KeyRing:
        """The ring of ``id:base64`` lines; ``source`` is the variable or file that errors name.

        Raises:
            ConfigurationError: names the line and the rule, and never shows what may be a key.
        """
        keys: list[EncryptionKey] = []
        seen: set[str] = set()
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                key = _parse_line(line.strip(), f"{source}, line {number}")
                if key.key_id in seen:
                    raise ConfigurationError(f"{source}, line {number}: the key id {key.key_id} is there twice")
                seen.add(key.key_id)
                keys.append(key)
        if not keys:
            raise ConfigurationError(f"{source}: holds no key; one `id:base64` a line, the first one encrypts")
        return cls(keys)

    @property
    def key_ids(self) -> tuple[str, ...]:
        """All ids, the current one first."""
        return tuple(self._keys)

    def find(self, name: str, key_id: str) -> EncryptionKey:
        """The key that the object ``name`` asks for.

        Raises:
            KeyUnknown: it is not in the ring.
        """
        key = self._keys.get(key_id)
        if key is None:
            raise KeyUnknown(name, key_id)
        return key

    def __repr__(self) -> str:
        return f"KeyRing(key_ids={self.key_ids})"


def _parse_line(line: str, where: str) -> EncryptionKey:
    key_id, colon, encoded = line.partition(":")
    # without a colon, or with a bad id, the text may be the key itself: it is not repeated
    if not colon:
        raise ConfigurationError(f"{where}: write `id:base64`")
    if not KEY_ID.fullmatch(key_id):
        raise ConfigurationError(f"{where}: a key id has 1 to 64 characters of A-Z a-z 0-9 . _ -")
    try:
        secret = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        # `from None`: the cause may quote what it could not read
        raise ConfigurationError(f"{where}: the key {key_id} is not valid base64") from None
    if len(secret) != KEY_BYTES:
        raise ConfigurationError(f"{where}: the key {key_id} has {len(secret)} bytes; it needs {KEY_BYTES}")
    return EncryptionKey(key_id, secret)
