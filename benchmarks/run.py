"""`make bench`: every benchmark, one after the other. Only ratios within one run mean anything on a busy machine.

make bench                          everything, about a quarter of an hour
make bench ARGS="--quick"           fewer jobs and rounds, about two minutes
make bench ARGS="--only queues"     one part; several are separated by commas
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

PARTS: Final = {  # script -> what --quick gives it
    "queues": ("--jobs", "300", "--rounds", "1"),
    "depth": ("--depths", "1000,10000", "--running", "1000"),
    "cold_start": (),
    "dispatch": (),
    "waiters": (),
    "recovery": (),
    "gateway": (),
    "crypto": ("--megabytes", "32", "--rounds", "2"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    _ = parser.add_argument("--quick", action="store_true", help="about two minutes")
    options = parser.parse_args()
    chosen = options.only.split(",")
    unknown = set(chosen) - set(PARTS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: not one of {', '.join(PARTS)}")
    for part in chosen:
        print(f"\n== {part.replace('_', ' ')}", flush=True)
        script = str(Path(__file__).with_name(f"{part}.py"))
        done = subprocess.run([sys.executable, script, *(PARTS[part] if options.quick else ())], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
