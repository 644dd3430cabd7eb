"""Identifiers: job ids, claim ids, model names and the Kubernetes names made from them."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
import uuid
from typing import Final

MODEL_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:/-]{0,198}[A-Za-z0-9])?\Z")
_RESERVED_PART: Final = frozenset(
    {
        "pending", "processing", "lease", "first-seen", "missing", "delayed", "paused", "ordered", "ordering", "bell",
        "deadletter", "outbox", "jobs", "deadlines", "state", "waiting", "cancel", "completed", "changed", "stream",
        "dead", "high", "claimed", "claim-owners", "claims-idx", "gate",
    }
)  # fmt: skip
SERVICE_TYPE: Final = re.compile(r"[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?\Z")
TOKEN: Final = re.compile(r"[\x21-\x7e]{1,200}\Z")

_last_ms = 0
_last_random = 0


def new_job_id() -> str:
    """A UUIDv7 (RFC 9562): time-ordered, and strictly growing within this process."""
    global _last_ms, _last_random  # noqa: PLW0603  the generator's state is one per process
    milliseconds = time.time_ns() // 1_000_000
    if milliseconds <= _last_ms:
        milliseconds = _last_ms
        _last_random += 1 + secrets.randbelow(1 << 16)
    else:
        _last_random = int.from_bytes(os.urandom(9), "big")  # 72 of 74 bits: room to grow
    _last_ms = milliseconds
    random_a, random_b = _last_random >> 62 & 0xFFF, _last_random & (1 << 62) - 1
    return str(uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | random_a << 64 | 0b10 << 62 | random_b))


def is_job_id(text: str) -> bool:
    """Whether ``text`` is the canonical form of a UUID, the only form a job id has."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def new_claim_id() -> str:
    """128 random bits, made by the caller before the claim, so that a repeat can be told from a rival."""
    return secrets.token_hex(16)


def check_model_name(name: str) -> str:
    """The name unchanged.

    Raises:
        ValueError: says which rule it breaks.
    """
    if not MODEL_NAME.match(name):
        raise ValueError(
            f"model name {name!r}: 1 to 200 characters of A-Z a-z 0-9 . _ : / -, first and last a letter or digit"
        )
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"model name {name!r}: no empty, '.' or '..' part between slashes")
    if not _RESERVED_PART.isdisjoint(name.split(":")[1:]):
        raise ValueError(f"model name {name!r}: a part after ':' may not be a word of the Redis key layout")
    return name


def kubernetes_name(name: str, *, limit: int = 40) -> str:
    """An RFC 1035 label for ``name``: its slug and 8 hex digits of its SHA-256, so two names never share one.

    The chart computes the same (``relayq.slug``); a test compares the two.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[: limit - 11].strip("-")
    return f"m-{slug}-{digest}" if slug else f"m-{digest}"
