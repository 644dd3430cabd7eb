"""What an answer says it used: `usage.total_tokens` of the usual JSON answers, streamed ones too.

Only the last ``TAIL_BYTES`` of an answer are kept for it, whatever its size, and only of JSON and event streams.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeGuard, cast

TAIL_BYTES: Final = 64 * 1024
_TYPES: Final = re.compile(r"(application|text)/([a-z0-9.+-]+\+)?(json|event-stream|x-ndjson)\b")
_USAGE: Final = re.compile(r'"usage"\s*:\s*(?=\{)')
_PARTS: Final = (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens"))
_MOST: Final = 10**12


class Usage:
    """Fed with the answer's chunks as they pass."""

    def __init__(self, content_type: str) -> None:
        self._wanted = bool(_TYPES.match(content_type))
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """The next part of the answer."""
        if self._wanted:
            self._tail = (self._tail + chunk[-TAIL_BYTES:])[-TAIL_BYTES:]

    def tokens(self) -> int | None:
        """The total that the last ``usage`` object names, or the sum of its two parts; None where there is none."""
        text = self._tail.decode("utf-8", "replace")
        for match in reversed(list(_USAGE.finditer(text))):
            try:
                found: Any = json.JSONDecoder().raw_decode(text, match.end())[0]
            except (ValueError, RecursionError):
                continue
            total = _total(cast("dict[str, Any]", found))
            if total is not None:
                return total
        return None


def _total(usage: dict[str, Any]) -> int | None:
    if _is_count(total := usage.get("total_tokens")):
        return total
    for names in _PARTS:
        counts = [count for name in names if _is_count(count := usage.get(name))]
        if len(counts) == len(names):
            return sum(counts)
    return None


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MOST
