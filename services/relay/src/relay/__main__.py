"""``python -m relay``."""

from __future__ import annotations

import gc
import os
import signal


def _nothing_claimed(*_: object) -> None:
    os._exit(0)


# First of all: as long as modules are being imported nothing is claimed, and SIGTERM may end the process at once. As
# process 1 of a container it would otherwise be ignored. The event loop's handlers replace these.
for _number in (signal.SIGTERM, signal.SIGINT):
    _ = signal.signal(_number, _nothing_claimed)

if __name__ == "__main__":
    gc.disable()  # what is imported stays: looking through it again and again is 5 % of the time to the first claim
    from relay.process import main

    gc.freeze()
    gc.enable()
    main()
