"""`make bench`: every benchmark, one after the other. Only ratios within one run mean anything on a busy machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PARTS = ("cold_start", "dispatch", "crypto")


def main() -> int:
    for part in PARTS:
        print(f"\n== {part.replace('_', ' ')}", flush=True)
        done = subprocess.run([sys.executable, str(Path(__file__).with_name(f"{part}.py"))], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
