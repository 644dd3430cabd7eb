"""Run a service that stops at a chosen point: before or after one of its Redis, store or HTTP calls.

    python -m queuecore.testing.faultpoint <module>      with FAULT_LOG, FAULT_AT and FAULT_ACTION in the environment

The product has no hook: the classes that send bytes are wrapped from outside, here. A point is ``label#n:before`` or
``…:after``, n counting the calls of that label in this process; in a gateway those of its submissions alone. Every
point that is passed is written to FAULT_LOG; at FAULT_AT the process kills itself (FAULT_ACTION=kill, the default) or
waits for a line on its standard input (wait).
"""

from __future__ import annotations

import functools
import importlib
import os
import runpy
import signal
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

_LOG: Final = os.open(os.environ["FAULT_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
_AT: Final = os.environ.get("FAULT_AT", "")
_ACTION: Final = os.environ.get("FAULT_ACTION", "kill")
_passed: Final[Counter[str]] = Counter()
_lock: Final = threading.Lock()
# A gateway's background tasks call whenever they like: only what happens for a submission is a point.
_counting: Final[ContextVar[bool]] = ContextVar("counting", default=True)


def reach(label: str, moment: str) -> None:
    """Note that this point is passed, and stop there if it is the chosen one."""
    if not _counting.get():
        return
    with _lock:
        if moment == "before":
            _passed[label] += 1
        point = f"{label}#{_passed[label]}:{moment}"
        _ = os.write(_LOG, f"{point}\n".encode())
    if point == _AT:
        if _ACTION == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        _ = sys.stdin.readline()


def around(owner: Any, name: str, label: str) -> None:
    """Make a coroutine function pass two points."""
    inner: Callable[..., Awaitable[Any]] = getattr(owner, name)

    @functools.wraps(inner)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        reach(label, "before")
        result = await inner(*args, **kwargs)
        reach(label, "after")
        return result

    setattr(owner, name, wrapped)


def wrap_redis() -> None:
    """Each command of the main thread; the liveness thread beats by its own clock, so its calls are no fixed points."""
    from redis.asyncio.connection import AbstractConnection  # noqa: PLC0415  only in the process under test

    send, read = AbstractConnection.send_packed_command, AbstractConnection.read_response

    def counts(connection: Any) -> bool:
        return threading.current_thread() is threading.main_thread() and getattr(connection, "_fault_label", "") != ""

    async def send_packed_command(self: Any, command: Any, *args: Any, **kwargs: Any) -> None:
        raw = b"".join(command) if isinstance(command, list) else bytes(command)
        words = raw.split(b"\r\n")
        self._fault_label = f"redis {words[2].decode('ascii', 'replace')}" if len(words) > 2 else ""  # noqa: PLR2004  *n $m WORD
        if counts(self):
            reach(self._fault_label, "before")
        await send(self, command, *args, **kwargs)

    async def read_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        reply = await read(self, *args, **kwargs)
        if counts(self):
            reach(self._fault_label, "after")
            self._fault_label = ""
        return reply

    AbstractConnection.send_packed_command = send_packed_command
    AbstractConnection.read_response = read_response


def wrap_stores() -> None:
    """Every call of a blob store that reaches the disk or the network."""
    directory: Any = importlib.import_module("queuecore.storage.directory")
    thread = directory._in_thread

    async def in_thread(key: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        label = f"store {function.__name__}"
        reach(label, "before")
        result = await thread(key, function, *args, **kwargs)
        reach(label, "after")
        return result

    look = directory.DirectoryStore._look

    async def looked(self: Any, key: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        label = f"store {function.__name__}"
        reach(label, "before")
        result = await look(self, key, function, *args, **kwargs)
        reach(label, "after")
        return result

    directory._in_thread = in_thread
    directory.DirectoryStore._look = looked
    if os.environ.get("BLOBS_URL", "").startswith("s3:"):
        client = importlib.import_module("aiobotocore.client").AioBaseClient
        call = client._make_api_call

        async def make_api_call(self: Any, operation: str, parameters: Any) -> Any:
            reach(f"store {operation}", "before")
            result = await call(self, operation, parameters)
            reach(f"store {operation}", "after")
            return result

        client._make_api_call = make_api_call


def wrap_submissions() -> None:
    """What a gateway reads of a submission and answers; from here on its calls are counted."""
    submissions: Any = importlib.import_module("gateway.handlers.submit")
    submit = submissions._submit

    async def counted(edge: Any, request: Any) -> Any:
        _ = _counting.set(True)  # for this request's task, which ends with it
        around(request, "_receive", "http receive")
        return await submit(edge, request)

    _ = _counting.set(False)
    submissions._submit = counted
    around(importlib.import_module("starlette.responses").Response, "__call__", "http answer")


def wrap_http() -> None:
    """What the relay sends to the model and reads from it."""
    link = importlib.import_module("relay.link")
    around(link._Plain, "send", "http send")
    around(link._Plain, "receive", "http receive")


def main(module: str) -> None:
    """Wrap, then run ``module`` as ``python -m`` does."""
    wrap_redis()
    wrap_stores()
    if module == "relay":
        wrap_http()
    if module == "gateway":
        wrap_submissions()
    sys.argv = [module]
    _ = runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
