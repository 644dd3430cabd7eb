"""The gateway's environment. Every variable starts with ``GATEWAY_``."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from queuecore.settings import Settings

Port = Annotated[int, Meta(ge=0, le=65535)]
HeaderName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")]


class GatewaySettings(Settings, frozen=True, kw_only=True):
    """What the gateway reads besides the common settings."""

    prefix: ClassVar[str] = "GATEWAY_"

    host: Annotated[str, Meta(description="Address of the public port.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Public port; 0 = a free one.")] = 8080
    admin_host: Annotated[str, Meta(description="Address of the admin port; off loopback only with a token.")] = (
        "127.0.0.1"
    )
    admin_port: Annotated[Port, Meta(description="Admin port.")] = 8081
    admin_token_file: Annotated[str, Meta(description="File with the admin port's bearer token.")] = ""
    metrics_host: Annotated[str, Meta(description="Address of /metrics and the probes.")] = "127.0.0.1"
    metrics_port: Annotated[Port, Meta(description="Port of /metrics and the probes.")] = 9101
    auth: Annotated[
        Literal["api-key", "header", "none"],
        Meta(description="How callers are told apart: api-key, header (a proxy in front names the tenant) or none."),
    ] = "api-key"
    allow_anonymous: Annotated[bool, Meta(description="Allow auth none on an address that is not loopback.")] = False
    api_keys_file: Annotated[
        str, Meta(description="Auth api-key: YAML with the hashed keys, their tenants, rights and limits.")
    ] = ""
    trusted_proxies: Annotated[
        str,
        Meta(
            description="Addresses and networks of proxies in front: X-Forwarded-For is believed from them alone, and "
            "with auth header the tenant's header too (unset = from anybody)."
        ),
    ] = ""
    tenant_header: Annotated[HeaderName, Meta(description="Auth header: the header that names the tenant.")] = (
        "X-Consumer"
    )
    priority_header: Annotated[
        str,
        Meta(
            pattern=r"^$|^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$",
            description="A submission with this header goes first; unset = no priority.",
        ),
    ] = ""
    max_upload_bytes: Annotated[int, Meta(ge=1, description="Largest file; a model may have a smaller limit.")] = (
        1_073_741_824
    )
    max_json_bytes: Annotated[
        int,
        Meta(ge=1, le=1_073_741_824, description="Largest JSON body; it is held in memory, other bodies are not."),
    ] = 16_777_216
    upload_idle_seconds: Annotated[
        float, Meta(gt=0, description="A client that sends nothing of its body for this long is given up.")
    ] = 30
    max_waiters: Annotated[int, Meta(ge=1, description="Long polls at once; more are answered 503.")] = 10_000
    shutdown_delay_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="After SIGTERM: how long new requests are still taken while readiness says no, so that a load "
            "balancer sends its next ones elsewhere.",
        ),
    ] = 0
    drain_seconds: Annotated[
        float, Meta(ge=0, description="After SIGTERM: how long requests that run may take to end.")
    ] = 25
    webhook_secrets_file: Annotated[
        str, Meta(description="Secrets that sign webhooks, `whsec_…` one a line, all active; unset = not signed.")
    ] = ""
    webhook_allow: Annotated[
        str,
        Meta(
            description="Addresses, networks and names (each alone or as host:port) that webhooks may reach although "
            "they are not public, by plain http too; the word `http` allows plain http everywhere."
        ),
    ] = ""
    read_cache_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="How long GET /models and the admin port's GET /queues may be old; 0 = never."),
    ] = 0
    accept_seed_completions: Annotated[
        bool,
        Meta(description="Apply verdicts that seed-protocol relays publish; anybody who can publish can forge them."),
    ] = False

    def __post_init__(self) -> None:
        if self.auth == "none" and not self.allow_anonymous and not is_loopback(self.host):
            raise ValueError(
                "GATEWAY_AUTH: none would let anybody who reaches GATEWAY_HOST in; "
                "listen on 127.0.0.1 or set GATEWAY_ALLOW_ANONYMOUS=true"
            )
        if not self.admin_token_file and not is_loopback(self.admin_host):
            raise ValueError("GATEWAY_ADMIN_HOST: an address that is not loopback needs GATEWAY_ADMIN_TOKEN_FILE")
        if self.priority_header and self.priority_header.lower() == self.tenant_header.lower():
            raise ValueError("GATEWAY_PRIORITY_HEADER and GATEWAY_TENANT_HEADER: they must not be the same header")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(re.sub(r"^\[(.*)\]$", r"\1", host)).is_loopback
    except ValueError:
        return False
