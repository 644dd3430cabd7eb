"""Environment of the reaper: every variable starts with ``REAPER_``; those that all services share are common."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from queuecore.settings import Settings


class ReaperSettings(Settings, frozen=True, kw_only=True):
    """How often the reaper looks and how long it waits before it acts."""

    prefix: ClassVar[str] = "REAPER_"

    enabled: Annotated[bool, Meta(description="false: the process stays up, healthy, and does nothing.")] = True
    interval_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="Pause between looks at leases; the other passes follow it.")
    ] = 5
    death_grace_seconds: Annotated[
        float,
        Meta(ge=0.1, le=3600, description="How long an owner's connection must be gone before its job is given away."),
    ] = 2
    orphan_min_age_seconds: Annotated[
        int, Meta(gt=0, description="An object without a record is removed when it was first seen this long ago.")
    ] = 3600
    metrics_host: Annotated[str, Meta(min_length=1, description="Address of /metrics and /health.")] = "127.0.0.1"
    metrics_port: Annotated[int, Meta(ge=0, le=65535, description="Its port; 0 takes a free one.")] = 9103
