"""Who calls: one function a mode, from the request's headers to the tenant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from gateway.problems import Refusal
from gateway.settings import GatewaySettings
from queuecore.errors import ConfigurationError
from queuecore.names import TOKEN

Authenticator: TypeAlias = Callable[[Mapping[str, str]], str]

ANONYMOUS = ""  # the one tenant of auth `none`


def authenticator(settings: GatewaySettings) -> Authenticator:
    """The function of ``GATEWAY_AUTH``.

    Raises:
        ConfigurationError: this release does not have that mode.
    """
    if settings.auth == "none":
        return _anyone
    if settings.auth == "header":
        return _by_header(settings.tenant_header)
    raise ConfigurationError(
        "GATEWAY_AUTH: api-key is not available in this release; choose header (a proxy in front of the gateway "
        "authenticates callers and names the tenant in GATEWAY_TENANT_HEADER) or none (on loopback)"
    )


def _anyone(_: Mapping[str, str]) -> str:
    return ANONYMOUS


def _by_header(name: str) -> Authenticator:
    def authenticate(headers: Mapping[str, str]) -> str:
        tenant = headers.get(name, "")
        if not tenant:
            raise Refusal(
                401, "unauthorized", f"the header {name} must name the caller", headers={"www-authenticate": "Header"}
            )
        if not TOKEN.match(tenant):
            raise Refusal(400, "invalid_request", f"{name}: 1 to 200 printable ASCII characters without spaces")
        return tenant

    return authenticate
