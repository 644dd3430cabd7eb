"""The options that say where the server is."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from relayq import admin, client
from relayq.admin import AdminClient
from relayq.client import Client
from relayq.command.exit_code import ExitCode, leave

QUICK_SECONDS: Final = 1.0  # somebody is looking at the screen

Url: TypeAlias = Annotated[str, typer.Option("--url", envvar="RELAYQ_URL", help="The gateway's public port.")]
ApiKey: TypeAlias = Annotated[
    str | None, typer.Option("--api-key", envvar="RELAYQ_API_KEY", help="Sent as a bearer token.", show_default=False)
]
Headers: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME:VALUE", help="Another request header; may be repeated."),
]
AdminUrl: TypeAlias = Annotated[
    str, typer.Option("--admin-url", envvar="RELAYQ_ADMIN_URL", help="The gateway's admin port.")
]
AdminToken: TypeAlias = Annotated[
    str | None,
    typer.Option("--admin-token", envvar="RELAYQ_ADMIN_TOKEN", help="The admin port's token.", show_default=False),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the server's JSON.")]

DEFAULT_URL: Final = client.DEFAULT_URL
DEFAULT_ADMIN_URL: Final = admin.DEFAULT_URL


def open_client(url: str, api_key: str | None, headers: list[str] | None, *, patience_seconds: float) -> Client:
    """A client of the public port."""
    pairs: dict[str, str] = {}
    for text in headers or []:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            leave(ExitCode.USAGE, f"--header {text!r}: give NAME:VALUE")
        pairs[name.strip()] = value.strip()
    try:
        return Client(url, api_key=api_key, headers=pairs, patience_seconds=patience_seconds)
    except ValueError as error:
        leave(ExitCode.USAGE, f"--url: {error}")


def open_admin(url: str, token: str | None) -> AdminClient:
    """A client of the admin port."""
    try:
        return AdminClient(url, token=token, patience_seconds=QUICK_SECONDS)
    except ValueError as error:
        leave(ExitCode.USAGE, f"--admin-url: {error}")
