"""``relayq supervise -- COMMAND…``: run the one-job relay again and again in one container.

A container that exits in a Deployment is restarted with a growing crash back-off, also after exit 0. So this small
program stays, and each job still gets a fresh process beside a warm model. It

* starts the command again at once after exit 0 (or 3: the claim was lost), with a floor for runs that end at once;
* after any other end waits longer each time, up to 30 s, and gives up after so many failures in a row, so that
  Kubernetes sees a container that cannot work;
* passes SIGTERM and SIGINT on to the command, waits for its end and starts nothing more; ends with 0 also when the
  signal itself ended the command, which was then still starting and had taken nothing;
* as PID 1 reaps what its descendants leave behind.

It stays beside every model, so it is kept small: the command replaces itself by this file run alone (10 MiB instead of
50), and nothing outside the standard library is imported here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Final, NoReturn

GOOD: Final = frozenset({0, 3})
FLOOR_SECONDS: Final = 0.5
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
MAX_FAILURES: Final = 10
CANNOT_RUN: Final = 127  # as shells say it
STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT})
HEARD: Final = STOPPING | {signal.SIGCHLD}


def become_supervisor(command: Sequence[str], most_failures: int, environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by a small one that supervises ``command``."""
    argv = [sys.executable, "-I", "-S", __file__, str(most_failures), *command]
    os.execve(sys.executable, argv, environ)  # noqa: S606  our own file


class Restarts:
    """When to start again: pure, from how the runs ended."""

    def __init__(self, most_failures: int) -> None:
        self._most = most_failures
        self.failures = 0

    def after(self, code: int, ran_seconds: float) -> float | None:
        """Seconds to wait after a run; None: give up."""
        if code in GOOD:
            self.failures = 0
            return max(0.0, FLOOR_SECONDS - ran_seconds)
        self.failures += 1
        if self.failures >= self._most:
            return None
        return min(FIRST_PAUSE_SECONDS * 2 ** (self.failures - 1), LONGEST_PAUSE_SECONDS)


class Supervisor:
    """Runs one command, one process at a time.

    The signals it hears stay blocked and are taken one by one where it waits, so none can come at a wrong moment.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], most_failures: int, report: Callable[[str], None]
    ) -> None:
        self._command = list(command)
        self._environ = environ
        self._restarts = Restarts(most_failures)
        self._report = report
        self._child = 0
        self._code = 0
        self._stopping = False
        self._passed_on = 0

    def run(self) -> int:
        """Until a signal or the last allowed failure; the exit code of this program."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        try:
            return self._loop(before)
        finally:
            _ = signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _loop(self, mask: Iterable[int]) -> int:
        while True:
            began = monotonic()
            code = self._run_once(mask)
            if self._stopping:
                return 0 if code in GOOD or code == -self._passed_on else _exit_code(code)
            pause = self._restarts.after(code, monotonic() - began)
            if code not in GOOD:
                then = "giving up" if pause is None else f"again in {pause:g} s"
                self._report(f"{self._command[0]} ended with {code}, failure {self._restarts.failures}: {then}")
            if pause is None:
                return _exit_code(code)
            end = monotonic() + pause
            while (left := end - monotonic()) > 0:
                self._hear(left)
                if self._stopping:
                    return 0

    def _run_once(self, mask: Iterable[int]) -> int:
        try:
            # A group of its own: a terminal's Ctrl-C reaches it once, through us.
            self._child = os.posix_spawnp(self._command[0], self._command, self._environ, setpgroup=0, setsigmask=mask)
        except OSError as error:
            self._report(f"cannot run {self._command[0]}: {error.strerror}")
            return CANNOT_RUN
        while self._child:
            self._hear(None)
        return self._code

    def _hear(self, seconds: float | None) -> None:
        """Wait for one signal, at most so long, and act on it."""
        heard = signal.sigwaitinfo(HEARD) if seconds is None else signal.sigtimedwait(HEARD, seconds)
        if heard is None:
            return
        if heard.si_signo == signal.SIGCHLD:
            self._reap()
        else:
            self._stopping = True
            if self._child:
                self._passed_on = heard.si_signo
                os.kill(self._child, heard.si_signo)

    def _reap(self) -> None:
        """Collect everything that has ended: one SIGCHLD may stand for many, orphans we inherited among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self._child = 0
                self._code = os.waitstatus_to_exitcode(status)


def _exit_code(code: int) -> int:
    """A signal's number as shells give it."""
    return 128 - code if code < 0 else code


def main() -> None:
    """``python -I -S supervise.py MAX_FAILURES COMMAND…``."""
    supervisor = Supervisor(sys.argv[2:], os.environ, int(sys.argv[1]), _say)
    sys.exit(supervisor.run())


def _say(text: str) -> None:
    print(f"relayq supervise: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
