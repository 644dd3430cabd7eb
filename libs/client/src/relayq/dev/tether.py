"""Starts a command that cannot outlive its parent: ``python -I -S tether.py PARENT_PID COMMAND…``.

On Linux the kernel kills the command when the parent ends, however it ends (SIGKILL included). It runs as a small
program of its own, before ``exec``, because code between fork and exec of a process with threads may deadlock. The
process id stays the same. Elsewhere the command runs untethered.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Tie this process to its parent and become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        _ = ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the kernel knew whom to watch
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606  the caller's own command


if __name__ == "__main__":
    main()
