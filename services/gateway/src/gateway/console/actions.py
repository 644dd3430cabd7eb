"""What the forms do. Every answer is a redirect to the page that shows what became of it (303)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway import operator
from gateway.console.access import Sessions
from gateway.console.redrive import FASTEST_PER_SECOND, SLOWEST_PER_SECOND, Redrives
from gateway.console.rendering import ROOT, link, page
from gateway.edge import Edge
from gateway.handlers.jobs import cancel_surely
from gateway.problems import Refusal
from queuecore.broker import Broker
from queuecore.job import Status
from queuecore.names import is_job_id
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

FORM_BYTES: Final = 262_144
FORM_FIELDS: Final = 1_000

Form = Mapping[str, Sequence[str]]


class Actions:
    """Handlers of POST."""

    def __init__(self, edge: Edge, sessions: Sessions, redrives: Redrives) -> None:
        self._edge = edge
        self._sessions = sessions
        self._redrives = redrives

    # -- sign in and out ----------------------------------------------------------------------------------------

    async def sign_in(self, request: Request) -> Response:
        """The admin token against a cookie."""
        form = await form_of(request)
        target = _own_page(one(form, "next"))
        if self._sessions.enabled and not self._sessions.knows(one(form, "token")):
            _log.warning("sign-in to the console refused", extra={"event": Event.REQUEST_REFUSED})
            return page(
                request, "login.html", {"next": target, "wrong": True}, 401,
                {"www-authenticate": 'Bearer realm="relayq admin"'},
            )  # fmt: skip
        answer = RedirectResponse(target, 303)
        if self._sessions.enabled:
            await self._sessions.begin(request, answer)
        return answer

    async def sign_out(self, _: Request) -> Response:
        """Forget the cookie."""
        answer = RedirectResponse(f"{ROOT}/login", 303)
        self._sessions.end(answer)
        return answer

    # -- queues -------------------------------------------------------------------------------------------------

    async def pause(self, request: Request) -> Response:
        """Hide waiting jobs from relays."""
        form, name, broker = await self._queue(request)
        await broker.pause()
        _log.warning("queue paused", extra={"event": Event.QUEUE_PAUSED, "model": name})
        return _back(form, name, "paused")

    async def resume(self, request: Request) -> Response:
        """End a pause."""
        form, name, broker = await self._queue(request)
        await broker.resume()
        _log.warning("queue resumed", extra={"event": Event.QUEUE_RESUMED, "model": name})
        return _back(form, name, "resumed")

    async def purge(self, request: Request) -> Response:
        """Cancel every waiting job."""
        form, name, broker = await self._queue(request)
        if one(form, "sure") != "yes":
            raise Refusal(400, "invalid_request", "Nothing was purged: tick the box that says you mean it.")
        purged = await operator.purge_all(broker)
        _log.warning("queue purged of %d jobs", purged, extra={"event": Event.QUEUE_PURGED, "model": name})
        return _back(form, name, "purged", purged)

    # -- dead letters -------------------------------------------------------------------------------------------

    async def redrive(self, request: Request) -> Response:
        """Begin a redrive of the chosen ones, or of all."""
        form, name, broker = await self._queue(request)
        pace = _pace(one(form, "per_second"))
        ids = await operator.deadletter_ids(broker) if one(form, "what") == "all" else _chosen(form)
        _ = self._redrives.order(name, ids, pace)
        return _deadletters(name, "redriving", len(ids))

    async def stop_redrive(self, request: Request) -> Response:
        """Leave the rest."""
        _, name, _ = await self._queue(request)
        self._redrives.stop(name)
        return _deadletters(name, "stopped")

    async def drop(self, request: Request) -> Response:
        """Take the chosen ones off the list."""
        form, name, broker = await self._queue(request)
        dropped = 0
        for job_id in _chosen(form):
            if is_job_id(job_id) and await broker.drop(job_id):
                dropped += 1
                extra = {"event": Event.JOB_DROPPED, "model": name, "job_id": job_id}
                _log.warning("dead letter dropped", extra=extra)
        return _deadletters(name, "dropped", dropped)

    # -- one job ------------------------------------------------------------------------------------------------

    async def cancel(self, request: Request) -> Response:
        """Cancel, or ask its relay to."""
        job_id = one(await form_of(request), "id")
        record = await self._edge.reader.get(job_id)
        cancelled = await cancel_surely(self._edge.broker_of(record), record.id)
        extra = {"event": Event.JOB_CANCELLED, "model": record.model, "job_id": record.id}
        _log.info("cancelled by an operator", extra=extra)
        said = "cancelled" if cancelled.status == Status.CANCELLED else "cancelling"
        return RedirectResponse(link(f"/jobs/{record.id}", said=said), 303)

    async def redrive_job(self, request: Request) -> Response:
        """Redrive one dead letter at once."""
        job_id = one(await form_of(request), "id")
        record = await self._edge.reader.get(job_id)
        await operator.redrive(self._edge.broker_of(record), record.id)
        extra = {"event": Event.JOB_REDRIVEN, "model": record.model, "job_id": record.id}
        _log.warning("dead letter redriven", extra=extra)
        return RedirectResponse(link(f"/jobs/{record.id}", said="redriven"), 303)

    async def _queue(self, request: Request) -> tuple[Form, str, Broker]:
        form = await form_of(request)
        name = one(form, "model")
        if name not in self._edge.brokers:
            raise Refusal(404, "model_not_found", f"There is no model {name!r}.")
        return form, name, self._edge.brokers[name]


async def form_of(request: Request) -> Form:
    """The fields of a form.

    Raises:
        Refusal: too large, or not a form.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES:
            raise Refusal(413, "body_too_large", f"A form may have {FORM_BYTES} bytes.")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS, errors="strict")
    except ValueError as error:
        raise Refusal(400, "invalid_request", f"That is no form: {error}") from error


def one(form: Form, name: str) -> str:
    """A field's value; "" when it is not there."""
    return form.get(name, [""])[0]


def _chosen(form: Form) -> list[str]:
    ids = list(dict.fromkeys(form.get("id", ())))
    if not ids:
        raise Refusal(400, "invalid_request", "Nothing was done: choose at least one job.")
    return ids


def _pace(text: str) -> float:
    try:
        pace = float(text)
    except ValueError:
        pace = -1
    if not SLOWEST_PER_SECOND <= pace <= FASTEST_PER_SECOND:
        rule = f"from {SLOWEST_PER_SECOND:g} to {FASTEST_PER_SECOND:g}"
        raise Refusal(400, "invalid_request", f"Jobs per second: a number {rule}.")
    return pace


def _own_page(wanted: str) -> str:
    """Where to go after signing in: never away from the console."""
    return wanted if wanted == ROOT or wanted.startswith((f"{ROOT}/", f"{ROOT}?")) else ROOT


def _back(form: Form, name: str, said: str, count: int | None = None) -> Response:
    """To the page whose form it was."""
    target = "" if one(form, "back") == "queues" else "/queue"
    return RedirectResponse(link(target, model=name, said=said, n=count), 303)


def _deadletters(name: str, said: str, count: int | None = None) -> Response:
    return RedirectResponse(link("/deadletters", model=name, said=said, n=count), 303)
