"""Write what compose.yaml needs and git does not hold: .env with random secrets, and the files of deploy/secrets.

Nothing that is set is ever changed, so it may run before every start:

    python3 deploy/prepare.py [--env-file FILE] [--secrets DIRECTORY]
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def _password() -> str:
    return secrets.token_urlsafe(24)


GENERATED: Final[dict[str, Callable[[], str]]] = {
    "VALKEY_GATEWAY_PASSWORD": _password,
    "VALKEY_RELAY_PASSWORD": _password,
    "VALKEY_REAPER_PASSWORD": _password,
    "VALKEY_OPERATOR_PASSWORD": _password,
    "S3_ACCESS_KEY": lambda: secrets.token_hex(10),
    "S3_SECRET_KEY": _password,
    "GRAFANA_PASSWORD": _password,
    "RELAYQ_API_KEY": lambda: f"relayq_{secrets.token_urlsafe(32)}",
    "ENCRYPTION_KEYS": lambda: f"k1:{base64.b64encode(secrets.token_bytes(32)).decode()}",
}


def fill(text: str) -> str:
    """The env file with every empty or missing secret filled in; all else stays byte for byte."""
    for name, make in GENERATED.items():
        empty = re.compile(rf"^{name}=[ \t]*$", re.MULTILINE)
        if empty.search(text):
            text = empty.sub(f"{name}={make()}", text, count=1)
        elif not re.search(rf"^{name}=", text, re.MULTILINE):
            text = f"{text.rstrip()}\n{name}={make()}\n"
    return text


def prepare(env_file: Path, secrets_dir: Path) -> None:
    """Bring both up to date."""
    before = env_file.read_text("utf-8") if env_file.exists() else ""
    after = fill(before or (ROOT / ".env.example").read_text("utf-8"))
    if after != before:
        _write(env_file, after, 0o600)
    # The directory keeps other users of this machine out; the gateway's user in the container must read the files.
    secrets_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys_dir = secrets_dir / "api-keys"  # mounted as a directory: the gateway sees a file that an editor replaced
    keys_dir.mkdir(exist_ok=True)
    keys_dir.chmod(0o755)
    for path, text in {
        secrets_dir / "admin-token": secrets.token_urlsafe(32),
        secrets_dir / "webhook-secrets": f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}",
        keys_dir / "keys.yaml": _keys(after),
    }.items():
        if not path.exists():
            _write(path, f"{text}\n", 0o644)


def _keys(env: str) -> str:
    """The key file with the one key of the env file, hashed as every key is."""
    found = re.search(r"^RELAYQ_API_KEY=['\"]?([^'\"\s]+)", env, re.MULTILINE)
    digest = hashlib.sha256((found[1] if found else "").encode()).hexdigest()
    return f"keys:\n  - {{name: first, tenant: default, sha256: {digest}, rights: [submit, read, cancel, priority]}}"


def _write(path: Path, text: str, mode: int) -> None:
    """Whole or not at all, and never readable by more than ``mode`` says."""
    partial = path.with_name(path.name + ".part")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        _ = file.write(text)
    partial.chmod(mode)
    _ = partial.replace(path)


def main() -> None:
    """Read the two paths and prepare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    _ = parser.add_argument("--env-file", type=Path, default=ROOT / ".env")
    _ = parser.add_argument("--secrets", type=Path, default=ROOT / "deploy" / "secrets")
    arguments = parser.parse_args()
    prepare(arguments.env_file, arguments.secrets)


if __name__ == "__main__":
    main()
