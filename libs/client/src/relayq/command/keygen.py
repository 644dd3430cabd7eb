"""keygen: an API key with its entry for the key file, or an encryption key."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from queuecore.crypto.header import KEY_ID
from queuecore.crypto.keyring import KEY_BYTES
from queuecore.names import TOKEN
from relayq.command import screen
from relayq.command.exit_code import ExitCode, leave, say

USUAL: Final = ("submit", "read", "cancel")
MAX_NAME: Final = 200

keygen = typer.Typer(no_args_is_help=True, help="Make a key. It is printed once and kept nowhere.")


class Right(StrEnum):
    """What an API key may allow."""

    SUBMIT = "submit"
    READ = "read"
    CANCEL = "cancel"
    PRIORITY = "priority"


@keygen.command("api-key")
def api_key(
    *,
    name: Annotated[str, typer.Option("--name", help="What the key is for, in logs.", show_default=False)],
    tenant: Annotated[str, typer.Option("--tenant", help="Whose jobs it sees and makes.", show_default=False)],
    right: Annotated[
        list[Right] | None,
        typer.Option("--right", help="May be repeated; submit, read and cancel when left out.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Key and entry as one JSON object.")] = False,
) -> None:
    """Make an API key: the key on standard output, its entry for GATEWAY_API_KEYS_FILE on standard error."""
    if not 1 <= len(name) <= MAX_NAME:
        leave(ExitCode.USAGE, f"--name: 1 to {MAX_NAME} characters")
    if not TOKEN.match(tenant):
        leave(ExitCode.USAGE, "--tenant: printable ASCII without spaces")
    key = f"relayq_{secrets.token_urlsafe(32)}"
    rights = list(dict.fromkeys(one.value for one in right)) if right else list(USUAL)
    entry = {"name": name, "tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest(), "rights": rights}
    if as_json:
        screen.print_json({"key": key, "entry": entry})
        return
    print(key, flush=True)
    say("The key stands above, once. Its entry, under `keys:` of GATEWAY_API_KEYS_FILE (read again without a restart):")
    say(f"  - {json.dumps(entry)}")


@keygen.command("encryption-key")
def encryption_key(
    *,
    key_id: Annotated[
        str | None, typer.Option("--id", help="Its id in stored objects; today's date when left out.")
    ] = None,
) -> None:
    """Make a line for ENCRYPTION_KEYS_FILE. The first line encrypts; keep the old ones to read what they wrote."""
    chosen = f"{datetime.now(UTC):%Y-%m-%d}" if key_id is None else key_id
    if not KEY_ID.fullmatch(chosen):
        leave(ExitCode.USAGE, "--id: 1 to 64 characters of A-Z a-z 0-9 . _ -")
    print(f"{chosen}:{base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()}", flush=True)
