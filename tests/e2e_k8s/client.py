"""A client of the gateway, run inside the cluster by ``python - COMMAND JSON``; standard library only.

``url`` is the gateway's, up to and with ``/jobs/<service type>``.

submit   {"url", "model", "count", "fields"}     -> ids, as posted
follow   {"url", "ids", "seconds"}               -> {id: [[time, status, attempts, reaps], …]}, one entry a change
document {"url", "id"}                           -> the status document
reach    {"host", "port", "seconds"}             -> "open" or why not
"""

from __future__ import annotations

import json
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

TENANT = {"X-Consumer": "e2e"}
TERMINAL = ("completed", "failed", "cancelled", "expired")


def ask(request: urllib.request.Request | str) -> Any:
    """The JSON answer. A gateway that is away for a moment (refused, 503) is asked again, as any client would."""
    if isinstance(request, str):
        request = urllib.request.Request(request, headers=TENANT)
    end = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > end:
                raise
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError) or time.monotonic() > end:
                raise
        time.sleep(0.5)


def submit(url: str, model: str, count: int, fields: dict[str, str]) -> list[str]:
    """Post ``count`` small files."""
    query = urllib.parse.urlencode({"model": model, **fields})
    ids: list[str] = []
    for number in range(count):
        body = f"RIFF file {number} at {time.time_ns()}".encode()
        headers = {**TENANT, "Content-Type": "application/octet-stream"}
        ids.append(ask(urllib.request.Request(f"{url}?{query}", body, headers))["job_id"])
    return ids


def follow(url: str, ids: list[str], seconds: float) -> dict[str, list[list[Any]]]:
    """Watch jobs until all have ended or the time is over."""
    seen: dict[str, list[list[Any]]] = {job_id: [] for job_id in ids}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for job_id, history in seen.items():
            if history and history[-1][1] in TERMINAL:
                continue
            document = ask(f"{url}/{job_id}")
            state = [document["status"], document["attempts"], document["reaps"]]
            if not history or history[-1][1:] != state:
                history.append([time.time(), *state])  # noqa: TID251  compared with another process of the machine
        if all(history[-1][1] in TERMINAL for history in seen.values()):
            break
        time.sleep(0.1)
    return seen


def document(url: str, id: str) -> Any:  # noqa: A002  the wire's name
    """One job."""
    return ask(f"{url}/{id}")


def reach(host: str, port: int, seconds: float) -> str:
    """Whether a connection can be made."""
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except OSError as error:
        return type(error).__name__
    return "open"


if __name__ == "__main__":
    command = {"submit": submit, "follow": follow, "document": document, "reach": reach}[sys.argv[1]]
    sys.stdout.write(json.dumps(command(**json.loads(sys.argv[2]))) + "\n")
