"""What a relay imports before it can claim: a count, so that no machine's mood hides what one more import costs."""

from __future__ import annotations

import subprocess
import sys

MOST_MODULES = 400  # measured 374; `redis.asyncio` and `uvloop` alone are 352
ALLOWED = {
    "cryptography", "cython_runtime", "hiredis", "msgspec", "queuecore", "redis", "relay", "typing_extensions", "uvloop", "yaml",
}  # fmt: skip


def test_a_relay_imports_redis_and_little_else_before_its_claim() -> None:
    code = "import relay.process, sys; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    packages = {name.partition(".")[0] for name in shown}
    third = {name for name in packages if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert third <= ALLOWED, f"{third - ALLOWED} before the claim"
    assert len(shown) <= MOST_MODULES
