"""redis-py without the OpenTelemetry SDK; imported before anything else of redis-py.

redis-py imports the SDK wherever it is installed, for metrics of its own that nobody here turns on: a tenth of a
relay's start. So it is told that there is none. Who traces imports it later (``queuecore.telemetry.otlp``).
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final, cast

_SDK: Final = "opentelemetry"


def _import_redis() -> None:
    if _SDK in sys.modules:
        return  # paid for already
    sys.modules[_SDK] = cast("Any", None)  # an import of it now raises ModuleNotFoundError
    try:
        _ = importlib.import_module("redis.asyncio")
    finally:
        del sys.modules[_SDK]


_import_redis()
