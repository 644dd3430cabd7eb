"""HEALTHCHECK of the images: exit 0 when this container answers 200.  probe.py PORT_VARIABLE DEFAULT_PORT PATH"""

from __future__ import annotations

import os
import sys
from http import HTTPStatus
from http.client import HTTPConnection


def main(variable: str, default: str, path: str) -> int:
    """0 or 1; a refused connection is a traceback in the health log, and 1 too."""
    connection = HTTPConnection("127.0.0.1", int(os.environ.get(variable) or default), timeout=4)
    connection.request("GET", path)
    return int(connection.getresponse().status != HTTPStatus.OK)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
