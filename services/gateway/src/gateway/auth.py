"""Who calls: one function a mode, from the request to the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from starlette.requests import Request

from gateway.addresses import TrustedProxies
from gateway.keyfile import Caller, KeyFile
from gateway.problems import Refusal
from gateway.settings import GatewaySettings
from queuecore.errors import ConfigurationError
from queuecore.names import TOKEN

Authenticator: TypeAlias = Callable[[Request], Caller]

ANONYMOUS = ""  # the one tenant of auth `none`


def authenticator(settings: GatewaySettings, proxies: TrustedProxies) -> Authenticator:
    """The function of ``GATEWAY_AUTH``.

    Raises:
        ConfigurationError: what the mode needs is not there.
    """
    if settings.auth == "none":
        return _anyone
    if settings.auth == "header":
        return _by_header(settings.tenant_header, proxies)
    if not settings.api_keys_file:
        raise ConfigurationError(
            "GATEWAY_AUTH: api-key needs GATEWAY_API_KEYS_FILE; without keys there is header (a proxy in front of the "
            "gateway authenticates callers and names the tenant in GATEWAY_TENANT_HEADER) or none (on loopback)"
        )
    return _by_key(KeyFile(settings.api_keys_file))


def _anyone(_: Request) -> Caller:
    return Caller(ANONYMOUS)


def _by_header(name: str, proxies: TrustedProxies) -> Authenticator:
    def authenticate(request: Request) -> Caller:
        tenant = request.headers.get(name, "")
        if proxies and not proxies.trusts(request.client.host if request.client else ""):
            raise Refusal(
                401, "unauthorized", f"{name} is believed only from GATEWAY_TRUSTED_PROXIES",
                headers={"www-authenticate": "Header"},
            )  # fmt: skip
        if not tenant:
            raise Refusal(
                401, "unauthorized", f"the header {name} must name the caller", headers={"www-authenticate": "Header"}
            )
        if not TOKEN.match(tenant):
            raise Refusal(400, "invalid_request", f"{name}: 1 to 200 printable ASCII characters without spaces")
        return Caller(tenant)

    return authenticate


def _by_key(keys: KeyFile) -> Authenticator:
    def authenticate(request: Request) -> Caller:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        caller = keys.caller(given.strip()) if scheme.lower() == "bearer" and given.strip() else None
        if caller is None:
            raise Refusal(
                401, "unauthorized", "Authorization: Bearer <API key> is needed",
                headers={"www-authenticate": 'Bearer realm="relayq"'},
            )  # fmt: skip
        return caller

    return authenticate
