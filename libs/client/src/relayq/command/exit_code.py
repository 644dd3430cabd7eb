"""What the command's exit codes mean, and what it says on the way out.

| code | meaning |
|---|---|
| 0 | done; with `--wait`: the job completed |
| 1 | the job ended with another verdict; `doctor` found something wrong; a stack could not start |
| 2 | wrong usage: an option, an argument, a file that is not there |
| 3 | the server cannot be reached |
| 4 | the server refused, or what answered is not relayq |
| 5 | the connection broke on the way: whether the job was submitted is not known |
| 6 | no verdict yet: `--timeout` is over, or the result was asked for too early |
| 130 | Ctrl-C |
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NoReturn

from relayq.errors import (
    Conflict,
    Gone,
    NotReachable,
    OutcomeUnknown,
    Refused,
    RelayqError,
    Throttled,
    TooLarge,
    Unauthorized,
    Unavailable,
    WaitTimeout,
)

ADVICE: Final[Mapping[type[Refused], str]] = {
    Unauthorized: "Give a key with --api-key (RELAYQ_API_KEY), or the header that names you with --header.",
    TooLarge: "`relayq models` shows each model's limit.",
    Gone: "Its retention is over; submit the file again.",
    Conflict: "`relayq status ID` shows where the job is.",
}


class ExitCode(IntEnum):
    """See the table above."""

    DONE = 0
    BAD_VERDICT = 1
    USAGE = 2
    NOT_REACHABLE = 3
    REFUSED = 4
    UNKNOWN = 5
    NO_VERDICT_YET = 6
    INTERRUPTED = 130


def say(text: str) -> None:
    """For people; standard output is for data."""
    print(text, file=sys.stderr, flush=True)


def leave(code: ExitCode, text: str) -> NoReturn:
    """End the command."""
    say(text)
    raise SystemExit(int(code))


def explain(error: RelayqError) -> tuple[ExitCode, str]:
    """Code and words for an error of the client, with what to do next."""
    match error:
        case NotReachable():
            return ExitCode.NOT_REACHABLE, f"{error}\nIs `relayq dev` running there? Otherwise give the right --url."
        case OutcomeUnknown():
            if error.idempotency_key:
                again = f"Send the same again with --idempotency-key {error.idempotency_key}: there will be one job."
                return ExitCode.UNKNOWN, f"{error}\n{again}"
            return ExitCode.UNKNOWN, f"{error}\nLook with `relayq jobs` before you try again."
        case WaitTimeout():
            return ExitCode.NO_VERDICT_YET, f"{error}; wait on with: relayq status {error.job.job_id} --wait"
        case Refused():
            return ExitCode.REFUSED, f"refused ({error.status} {error.code}): {error.detail}{_advice(error)}"
        case _:
            return ExitCode.REFUSED, str(error)


def _advice(error: Refused) -> str:
    text = next((text for kind, text in ADVICE.items() if isinstance(error, kind)), "")
    if error.code == "job_not_found":
        text = "`relayq jobs` lists the jobs of this server."
    if isinstance(error, Throttled | Unavailable):
        seconds = error.retry_after_seconds
        text = "Try again later." if seconds is None else f"Try again in {seconds:g} s."
    return f"\n{text}" if text else ""
