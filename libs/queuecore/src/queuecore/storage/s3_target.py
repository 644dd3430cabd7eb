"""Which bucket, and how patiently."""

from __future__ import annotations

from typing import NamedTuple


class S3Target(NamedTuple):
    """Which bucket, and how to talk to its server; credentials and region come from the standard ``AWS_*``."""

    bucket: str
    endpoint_url: str = ""
    addressing_style: str = "auto"
    checksums: str = "when_required"


class Patience(NamedTuple):
    """A transient fault is retried for ``seconds``, and at least until ``attempts`` were made."""

    seconds: float
    attempts: int
