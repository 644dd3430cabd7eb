"""What proves that this relay is alive, in a thread of its own that nothing in the job can block (case B1).

Two connections to Redis: a subscription to the cancel channel, always reading, whose identity is registered in the
claim, so that the reaper sees at once when this process is gone; and one that renews the lease every third of it and
looks at the record every second, so that a lost cancel signal costs a second.

Redis out of reach does not end the run (design §10.1): the fence protects the bytes, and the verdict's script decides.
A refused claim does, except while the job only waits again (this process was stopped, or its path cut, for longer than
the lease) and nobody else has claimed it: then the work is still valid, and its verdict is accepted (G4). Whatever else
goes wrong here is handed to the main loop; nothing dies silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from queuecore.broker import Broker, Claim, Signals
from queuecore.clock import monotonic
from queuecore.errors import BrokerUnavailable, JobError, OutcomeUnknown
from queuecore.job import Status
from queuecore.retry import Backoff
from queuecore.telemetry.names import Event
from relay.tally import Tally

LOOK_SECONDS: Final = 1.0
_LONGEST_RENEWAL_SECONDS: Final = 30.0
_REPLY_SECONDS: Final = 5.0
_BACKOFF: Final = Backoff(0.1, 1)  # well under the death grace
_log = logging.getLogger(__name__)


class Listener(NamedTuple):
    """What the owner of a claim is told, at most once each."""

    cancelled: Callable[[], None]
    lost: Callable[[], None]


class Held:
    """A claim that is being kept alive."""

    def __init__(self, claim: Claim, listener: Listener, renew_every_seconds: float) -> None:
        self.claim = claim
        self.listener = listener
        self.registered = claim.record.owner_client
        self.renew_every_seconds = renew_every_seconds
        self.renew_at = monotonic() + renew_every_seconds
        self.cancel_seen = False
        self.requeued = False


class Keeper:
    """Keeps claims alive; all of it runs in one event loop."""

    def __init__(self, broker: Broker, signals: Signals, tally: Tally) -> None:
        self._broker = broker
        self._signals = signals
        self._tally = tally
        self._held: Held | None = None
        self._wake = asyncio.Event()
        self._renew_every_seconds = min(broker.limits.lease_ms / 3000, _LONGEST_RENEWAL_SECONDS)
        self.on_connected: Callable[[], None] = lambda: None
        self.client = ""
        self.looked_at = monotonic()

    async def run(self) -> None:
        """For ever; raises what it does not know how to survive."""
        async with asyncio.TaskGroup() as group:
            _ = group.create_task(self._listen())
            _ = group.create_task(self._keep())

    def hold(self, claim: Claim, listener: Listener) -> None:
        """Keep this claim alive from now on."""
        self._held = Held(claim, listener, self._renew_every_seconds)
        self._wake.set()

    def let_go(self) -> None:
        """Stop renewing."""
        self._held = None

    async def _listen(self) -> None:
        async for job_id in self._signals.cancels(self._broker.model, self._connected):
            if self._held and job_id in {"", self._held.claim.job_id}:
                self._wake.set()
        raise RuntimeError("the cancel signals ended, which they never do")

    def _connected(self, client: str) -> None:
        self.client = client
        self.on_connected()
        self._wake.set()  # a new connection is registered at once: the death grace is short

    async def _keep(self) -> None:
        failures = 0
        while True:
            self.looked_at = monotonic()
            pause = LOOK_SECONDS
            if held := self._held:
                try:
                    async with asyncio.timeout(_REPLY_SECONDS):
                        await self._look(held)
                except (BrokerUnavailable, OutcomeUnknown, TimeoutError) as error:
                    failures += 1
                    pause = _BACKOFF.pause_seconds(failures)
                    self._tally.count("LEASE_RENEWALS", "failed")
                    if failures == 1:
                        _log.warning(
                            "the lease cannot be renewed now; the run goes on",
                            extra={"event": Event.CONNECTION_LOST, "job_id": held.claim.job_id, "error": str(error)},
                        )
                else:
                    if failures:
                        _log.info(
                            "the lease can be renewed again",
                            extra={"event": Event.CONNECTION_RESTORED, "job_id": held.claim.job_id},
                        )
                    failures = 0
                    pause = min(LOOK_SECONDS, max(0.0, held.renew_at - monotonic()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    _ = await self._wake.wait()
            self._wake.clear()

    async def _look(self, held: Held) -> None:
        """Renew when it is time or something has changed; otherwise only read, which adds nothing to Redis's log."""
        try:
            cancel_requested = await self._read(held) if self._only_reads(held) else None
            if cancel_requested is None:
                client = self.client
                renewed = await self._broker.renew(held.claim, client)
                held.registered = client
                held.renew_at = monotonic() + held.renew_every_seconds
                cancel_requested = renewed.cancel_requested
                self._tally.count("LEASE_RENEWALS", "renewed")
        except JobError:  # ClaimLost, or the record is gone
            if await self._only_requeued(held):
                return
            if self._held is held:  # not let go meanwhile: after the verdict a refusal is as it should be
                self._held = None
                self._tally.count("LEASE_RENEWALS", "lost")
                held.listener.lost()
            return
        if cancel_requested and not held.cancel_seen and self._held is held:
            held.cancel_seen = True
            held.listener.cancelled()

    async def _only_requeued(self, held: Held) -> bool:
        """Whether the job waits again and no other claim was made since: then the run goes on."""
        claim = held.claim
        try:
            record = await self._broker.get(claim.job_id)
        except JobError:
            return False
        if (record.status, record.fence, record.claim_id) != (Status.PENDING, claim.fence, claim.claim_id):
            return False
        held.renew_at = monotonic() + held.renew_every_seconds  # until then it is looked at every second, as ever
        if not held.requeued:
            held.requeued = True
            _log.warning(
                "the job was given back to the queue; the run goes on while nobody else has it",
                extra={"event": Event.JOB_REAPED, "job_id": claim.job_id},
            )
        return True

    def _only_reads(self, held: Held) -> bool:
        return held.registered == self.client and monotonic() < held.renew_at

    async def _read(self, held: Held) -> bool | None:
        """Whether a cancellation is requested; None when the record no longer shows this claim: renew will say."""
        claim = held.claim
        record = await self._broker.get(claim.job_id)
        if (record.status, record.fence, record.claim_id) != (Status.PROCESSING, claim.fence, claim.claim_id):
            return None
        return bool(record.cancel_requested)


class Liveness(Protocol):
    """What the relay's loop needs. Called from the main loop, which also runs every callback of a listener."""

    @property
    def client(self) -> str:
        """``<run_id>:<client id>`` of the open subscription, "" before the first."""
        ...

    @property
    def looked_at(self) -> float:
        """When it last went round, monotonic."""
        ...

    async def connected(self, within_seconds: float) -> bool:
        """Wait for the first subscription; whether there is one."""
        ...

    def hold(self, claim: Claim, listener: Listener) -> None:
        """Keep ``claim`` alive until ``let_go``."""
        ...

    def let_go(self) -> None:
        """Stop keeping it alive; from now on no callback of its listener is called."""
        ...


class LivenessThread(Liveness):
    """A ``Keeper`` in a daemon thread with an event loop and connections of its own.

    ``open_keeper`` runs in the thread; ``broken`` is told what ended the thread, in the main loop.
    """

    def __init__(self, open_keeper: Callable[[], Awaitable[Keeper]], broken: Callable[[BaseException], None]) -> None:
        self._main = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._open_keeper = open_keeper
        self._broken = broken
        self._keeper: Keeper | None = None
        self._wanted: tuple[Claim, Listener] | None = None
        self._connected = asyncio.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)
        self._thread.start()

    @property
    def client(self) -> str:
        """The subscription's identity."""
        return self._keeper.client if self._keeper else ""

    @property
    def looked_at(self) -> float:
        """The keeper's last round; 0 before the first."""
        return self._keeper.looked_at if self._keeper else 0.0

    async def connected(self, within_seconds: float) -> bool:
        """Wait for the thread's first subscription."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                return await self._connected.wait()
        return False

    def hold(self, claim: Claim, listener: Listener) -> None:
        """Hand the claim to the thread."""

        def here(callback: Callable[[], None]) -> Callable[[], None]:
            return lambda: self._tell(lambda: callback() if self._wanted is wanted else None)

        wanted = self._wanted = (claim, Listener(here(listener.cancelled), here(listener.lost)))
        self._in_thread(self._apply)

    def let_go(self) -> None:
        """Take it back."""
        self._wanted = None
        self._in_thread(self._apply)

    async def aclose(self) -> None:
        """End the thread."""
        self._closing = True
        self._in_thread(self._cancel)
        await asyncio.to_thread(self._thread.join, 5)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:  # noqa: BLE001  the outermost frame of this thread: the main loop is told
            if not self._closing:
                self._tell(functools.partial(self._broken, error))
        finally:
            self._loop.close()

    async def _live(self) -> None:
        keeper = await self._open_keeper()
        keeper.on_connected = lambda: self._tell(self._connected.set)
        self._keeper = keeper
        self._apply()
        await keeper.run()

    def _apply(self) -> None:
        if self._keeper:
            wanted = self._wanted  # one read: the main thread may change it meanwhile, and then comes again
            if wanted is None:
                self._keeper.let_go()
            else:
                self._keeper.hold(*wanted)

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            _ = task.cancel()

    def _in_thread(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the thread has ended: ``broken`` was told, or is about to be
            _ = self._loop.call_soon_threadsafe(callback)

    def _tell(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the main loop is closed: the process ends
            _ = self._main.call_soon_threadsafe(callback)
