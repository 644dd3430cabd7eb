"""Which keys a store accepts."""

from __future__ import annotations

from typing import Final

MAX_KEY_BYTES: Final = 900  # S3 allows 1024, of which the prefix of BLOBS_URL takes its share


def check_key(key: str) -> str:
    """The key unchanged: parts between slashes, none empty and none beginning with a dot.

    Keys are made by us, so a refusal is a bug of the caller; the rule keeps it from reaching outside the store.

    Raises:
        ValueError: says which rule it breaks.
    """
    if not key.isprintable():
        raise ValueError(f"object key {key!r}: printable characters only")
    if not 0 < len(key.encode()) <= MAX_KEY_BYTES:
        raise ValueError(f"object key: 1 to {MAX_KEY_BYTES} bytes")
    if "\\" in key or any(part == "" or part.startswith(".") for part in key.split("/")):
        raise ValueError(f"object key {key!r}: no backslash, and no part that is empty or begins with a dot")
    return key
