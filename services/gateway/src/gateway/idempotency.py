"""The Idempotency-Key header: what a key may be, what makes two requests the same, and holding a key while one runs.

One rule for both ways of writing: ``"abc"`` (the structured-field string of the IETF draft) and ``abc`` are the same
key. A quoted key may hold any printable ASCII; a bare one no space, comma, quote or backslash, for a comma is how
HTTP joins two headers. The key is 1 to 255 characters long, in either form.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from starlette.datastructures import Headers

from gateway import members
from gateway.problems import Refusal
from gateway.uploads import Accepted
from queuecore import clock
from queuecore.errors import BrokerError, OutcomeUnknown
from queuecore.names import new_claim_id
from queuecore.reservation import LIFE_MS, Answered, Held, Reply, Reservation, Reservations, Scope
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

LONGEST_KEY: Final = 255
RENEW_SECONDS: Final = LIFE_MS / 4000
RETRY_SECONDS: Final = "1"
_QUOTED: Final = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"\Z')
_BARE: Final = re.compile(r"[!#-+\--\[\]-~]+\Z")
_RULE: Final = (
    f'Idempotency-Key: 1 to {LONGEST_KEY} printable ASCII characters, as "…" or bare; '
    "bare without spaces, commas, quotes and backslashes"
)


def key_of(headers: Headers) -> str | None:
    """The request's key; None when it has none.

    Raises:
        Refusal: 400, it is no key or there are two.
    """
    given = headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1:
        raise Refusal(400, "invalid_idempotency_key", "Idempotency-Key: given twice")
    text = given[0].strip(" \t")
    quoted = _QUOTED.match(text)
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else text
    if not (quoted or _BARE.match(text)) or not 1 <= len(key) <= LONGEST_KEY or not key.strip():
        raise Refusal(400, "invalid_idempotency_key", _RULE)
    return key


def fingerprint(accepted: Accepted) -> str:
    """Tells two requests under one key apart: by what was understood of them, never by their raw bytes.

    A multipart boundary, the order of fields and whether options came as fields or in the query make no difference;
    the file's bytes, name and type and every option do.
    """
    one = accepted.submission
    options = (
        accepted.sha256, accepted.filename, accepted.content_type, one.pipeline or one.service_type, one.model,
        one.operation_name, one.priority, one.not_before, one.deadline, one.ordering_key, one.callback_url,
        one.content_class, one.dedup,
    )  # fmt: skip
    digest = hashlib.sha256(msgspec.json.encode([*options, canonical_params(one.params)]))
    return digest.hexdigest()


def canonical_params(text: str) -> str:
    """The params in the order of their names, as far as the order of what a client wrote says nothing."""
    parts = [members.member(name, value) for name, value in members.object_members(text.encode() or b"{}").items()]
    # Repeated names (whose order counts) and a text with spaces of its own are compared as they are.
    return "".join(sorted(parts)) if text == members.object_of(parts) else text


class Hold:
    """A key while its request runs. ``answer`` is set when an earlier request under it made a job already."""

    def __init__(self, keys: Reservations, scope: Scope) -> None:
        self.answer: Answered | None = None
        self._keys = keys
        self._scope = scope
        self._token = new_claim_id()

    def reservation(self, accepted: Accepted) -> Reservation:
        """What ``submit`` checks and answers with."""
        return Reservation(self._scope, self._token, fingerprint(accepted))

    async def take(self) -> None:
        """Reserve the key, or learn what it stands for.

        Raises:
            Refusal: 409, another request under it is being accepted.
            BrokerUnavailable, OutcomeUnknown
        """
        try:
            reply = await self._reserve()
        except OutcomeUnknown:
            reply = await self._reserve()
        match reply:
            case Answered():
                self.answer = reply
            case Held():
                raise Refusal(
                    409, "idempotency_in_flight", "a request with this Idempotency-Key is still being accepted",
                    headers={"retry-after": RETRY_SECONDS},
                )  # fmt: skip
            case _:
                return

    async def renew(self) -> None:
        """Extend the reservation for ever. What fails is tried again; ``submit`` looks at the outcome."""
        while True:
            await clock.sleep(RENEW_SECONDS)
            try:
                _ = await self._reserve()
            except BrokerError as error:
                _log.info("a reservation was not renewed: %s", error, extra={"event": Event.CONNECTION_LOST})

    async def free(self) -> None:
        """The request failed: the next one under this key may run at once."""
        try:
            await self._keys.free(self._scope, self._token)
        except BrokerError as error:
            _log.info("a reservation waits for its end: %s", error, extra={"event": Event.CONNECTION_LOST})

    async def _reserve(self) -> Reply:
        return await self._keys.reserve(self._scope, self._token)


@asynccontextmanager
async def held(keys: Reservations, scope: Scope) -> AsyncGenerator[Hold, None]:
    """Hold a key inside the block; whatever goes wrong there frees it, unless a job may have been made.

    Raises:
        Refusal: see ``Hold.take``.
    """
    hold = Hold(keys, scope)
    await hold.take()
    if hold.answer is not None:
        yield hold
        return
    renewing = asyncio.create_task(hold.renew())
    try:
        yield hold
    except OutcomeUnknown:
        raise  # the job may be there: its answer decides, or the reservation's end
    except BaseException:
        await hold.free()
        raise
    finally:
        _ = renewing.cancel()
        _ = await asyncio.wait({renewing})
