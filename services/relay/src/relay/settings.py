"""The relay's variables."""

from __future__ import annotations

from typing import Annotated, ClassVar
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta

from queuecore.settings import Settings


class RelaySettings(Settings, frozen=True, kw_only=True):
    """What `python -m relay` reads beside the common settings."""

    prefix: ClassVar[str] = "RELAY_"

    model: Annotated[str, Meta(min_length=1, description="The model whose queue this relay serves; in models.yaml.")]
    queue_pop_timeout_seconds: Annotated[
        float, Meta(ge=0, description="How long to wait for a job before the process ends with 0; 0 = for ever.")
    ] = 300
    inference_url: Annotated[
        str, Meta(pattern=r"^https?://[\x21-\x7e]+$", description="Where the inference server listens.")
    ] = "http://127.0.0.1:9000"
    ready_timeout_seconds: Annotated[
        float, Meta(gt=0, description="How long `/health` may take to answer 200; then the process ends with 1.")
    ] = 600
    execution_timeout_seconds: Annotated[
        float, Meta(gt=0, description="Longest run of one job; the model's own value in models.yaml wins.")
    ] = 3600
    max_jobs: Annotated[int, Meta(ge=0, description="Jobs to run before the process ends; 0 = until idle.")] = 1
    drain_seconds: Annotated[
        float, Meta(ge=0, description="After SIGTERM a running job has this long to finish; then it is given back.")
    ] = 30
    exit_when_empty: Annotated[
        bool, Meta(description="End with 0 at once when no job waits or runs: how a KEDA Job avoids loading the model.")
    ] = False
    metrics_host: Annotated[str, Meta(description="Where `/metrics` and `/health/…` listen.")] = "127.0.0.1"
    metrics_port: Annotated[
        int, Meta(ge=0, le=65535, description="0 = no such endpoint; a port in use is only warned about.")
    ] = 9102
    breaker_failures: Annotated[
        int, Meta(ge=0, description="Infrastructure failures in a row that pause the model; 0 = never.")
    ] = 5
    breaker_cooldown_seconds: Annotated[float, Meta(gt=0, description="How long such a pause lasts.")] = 60

    def __post_init__(self) -> None:
        parts = urlsplit(self.inference_url)
        if not _port_is_valid(parts) or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError("RELAY_INFERENCE_URL: http://host:port or https://host:port, with no query or password")


def _port_is_valid(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False
