"""What a submission allows the model to use, for limits by tokens: its `max_tokens`."""

from __future__ import annotations

import json
from typing import Any, Final, cast

NAMES: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_MOST: Final = 10**9


def estimate(params: str) -> str:
    """The params' own bound as a record field; "" where they name none that is a whole number from 1 on."""
    if not any(name in params for name in NAMES):
        return ""
    found = cast("dict[str, Any]", json.loads(params))
    for name in NAMES:
        text = str(found.get(name, ""))
        if text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST:
            return str(int(text))
    return ""
