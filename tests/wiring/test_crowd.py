"""A thousand event streams and a thousand long polls on one gateway: all are told of the verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import pytest

from queuecore.broker import Result, Worker
from queuecore.clock import monotonic
from queuecore.names import new_claim_id
from queuecore.testing.crowd import open_waits, told
from queuecore.testing.requirement import requirement
from queuecore.testing.yard import Yard

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.slow]

EACH: Final = 1_000
WITHIN_SECONDS: Final = 5.0  # `make bench` states the p99; a machine that runs other things gets more


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.timeout(200)
@requirement("wait:any:thousands-are-told")
async def test_two_thousand_clients_are_all_told(yard: Yard, tell: Callable[[str], None]) -> None:
    gateway = await yard.gateway()
    job_id = await yard.submit()
    claim = await yard.broker.claim(Worker("w"), new_claim_id())
    assert claim is not None
    path = f"/jobs/echo/{job_id}"
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        etag = (await http.get(path)).headers["etag"]
        before = resident_bytes(gateway.pid)
        waits = await open_waits(int(gateway.url.rpartition(":")[2]), path, etag, streams=EACH, polls=EACH)

        each = (resident_bytes(gateway.pid) - before) / (2 * EACH)
        _ = await yard.broker.complete(claim, Result("nowhere", 1, "text/plain", "00"))
        verdict = monotonic()
        moments = [moment - verdict for moment in await told(waits)]

    assert len(moments) == 2 * EACH
    tell(
        f"2,000 clients told: p50 {moments[EACH]:.2f} s, p99 {moments[-20]:.2f} s, last {moments[-1]:.2f} s; {each:.0f} B each"
    )
    assert moments[-1] < WITHIN_SECONDS
