"""Standard Webhooks: three headers, signed with every active secret (standardwebhooks.com, symmetric scheme v1).

``GATEWAY_WEBHOOK_SECRETS_FILE`` holds one secret a line, ``whsec_`` and base64 of 24 to 64 bytes; ``#`` begins a
comment. To rotate: add the new one, let receivers learn it, remove the old one. The file is read again when it changes;
one that cannot be read then is said in the log and the secrets of before stay.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from queuecore.errors import ConfigurationError
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

PREFIX: Final = "whsec_"
SHORTEST: Final = 24
LONGEST: Final = 64


class Secrets:
    """The active secrets; none when no file is named, and then nothing is signed."""

    def __init__(self, path: str) -> None:
        """Read the file.

        Raises:
            ConfigurationError: it cannot be read, or a line is no secret.
        """
        self._path = Path(path) if path else None
        self._version: tuple[int, int, int] | None = None
        self._secrets: Sequence[bytes] = ()
        if self._path is not None:
            self._secrets = self._read(self._path)

    def current(self) -> Sequence[bytes]:
        """Every active secret, read anew when the file was changed."""
        if self._path is not None:
            try:
                if self._version != _version(self._path):
                    self._secrets = self._read(self._path)
            except (OSError, ConfigurationError) as error:
                _log.error(
                    "webhook secrets were not read anew: %s", error, extra={"event": Event.CONFIGURATION_REFUSED}
                )
        return self._secrets

    def _read(self, path: Path) -> Sequence[bytes]:
        try:
            self._version = _version(path)
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"GATEWAY_WEBHOOK_SECRETS_FILE {path}: {error}") from error
        found = [
            _secret(line.strip(), number, path)
            for number, line in enumerate(lines, 1)
            if line.strip() and not line.strip().startswith("#")
        ]
        if not found:
            raise ConfigurationError(f"GATEWAY_WEBHOOK_SECRETS_FILE {path}: it holds no secret")
        return found


def signed(event_id: str, timestamp: int, body: bytes, secrets: Sequence[bytes]) -> dict[str, str]:
    """The headers of one attempt; the signature covers id, timestamp and the very bytes that are sent."""
    headers = {"webhook-id": event_id, "webhook-timestamp": str(timestamp)}
    if secrets:
        content = f"{event_id}.{timestamp}.".encode() + body
        digests = [hmac.digest(secret, content, hashlib.sha256) for secret in secrets]
        headers["webhook-signature"] = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return headers


def _version(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _secret(text: str, number: int, path: Path) -> bytes:
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not SHORTEST <= len(secret) <= LONGEST:
        raise ConfigurationError(
            f"GATEWAY_WEBHOOK_SECRETS_FILE {path}: line {number} is not {PREFIX} and base64 of {SHORTEST} to "
            f"{LONGEST} bytes"
        )
    return secret
