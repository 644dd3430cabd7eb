"""What this process counts for /metrics.

The metrics library costs 60 ms of import, so counts are kept here until the endpoint has loaded it, and from then on go
straight to it. Safe from any thread.
"""

from __future__ import annotations

import importlib
import threading
from collections import Counter
from typing import Literal

Series = Literal["RUNS", "LEASE_RENEWALS", "FENCED_REFUSALS"]  # constants of queuecore.telemetry.metrics


class Tally:
    """Counters of one model's relay."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._kept: Counter[tuple[Series, str]] = Counter()
        self._published = False

    def count(self, series: Series, label: str) -> None:
        """One more; ``label`` is the series' label beside the model."""
        with self._lock:
            if not self._published:
                self._kept[series, label] += 1
                return
        self._add(series, label, 1)

    def publish(self) -> None:
        """Load the metrics library and hand over; blocks for the import, so call it in a thread of its own."""
        _ = importlib.import_module("queuecore.telemetry.metrics")
        with self._lock:
            self._published = True
            for (series, label), number in self._kept.items():
                self._add(series, label, number)

    def _add(self, series: Series, label: str, number: int) -> None:
        from queuecore.telemetry import metrics  # noqa: PLC0415  publish has loaded it

        {"RUNS": metrics.RUNS, "LEASE_RENEWALS": metrics.LEASE_RENEWALS, "FENCED_REFUSALS": metrics.FENCED_REFUSALS}[
            series
        ].labels(self._model, label).inc(number)
