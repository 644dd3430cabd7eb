"""``python -m mock_inference``: one process, settings from MOCK_ variables."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def _leave(_number: int, _frame: FrameType | None) -> None:
    # before the server runs, and once more after it stopped: it raises its signal anew then
    sys.exit(0)


def main() -> None:
    """Serve until SIGTERM or SIGINT; exit 0, or 1 with the reason when a setting is wrong or the port is taken."""
    # first thing: as process 1 of a container a signal without a handler is ignored
    for number in (signal.SIGTERM, signal.SIGINT):
        _ = signal.signal(number, _leave)

    import os  # noqa: PLC0415  the handlers stand before anything that takes time to import

    from mock_inference.server import serve  # noqa: PLC0415
    from mock_inference.settings import SettingsError, read_settings  # noqa: PLC0415

    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        sys.exit(f"mock-inference: {error}")
    serve(settings)


if __name__ == "__main__":
    main()
