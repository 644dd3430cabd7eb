"""The operator's side of webhooks: list, look, deliver again."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.handlers.answers import integer, json_answer, query_of
from gateway.problems import Refusal
from gateway.webhooks.log import notice_detail, notice_document
from queuecore.notice import Notices, NoticeStatus
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

REDELIVER_MOST: Final = 1_000
BODY_BYTES: Final = 1_048_576
_CURSOR: Final = re.compile(r"\d{1,15}:[0-9a-f-]{36}:\d{1,9}\Z")


class RedeliveryOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a redelivery: either ``ids`` (of events) or ``all`` that are parked."""

    ids: list[str] | None = None
    all: bool = False


class WebhookAdmin:
    """The handlers."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices

    def routes(self) -> list[Route]:
        """For the admin port."""
        return [
            Route("/webhooks", self.page, methods=["GET"]),
            Route("/webhooks/redeliver", self.redeliver_many, methods=["POST"]),
            Route("/webhooks/{event_id}", self.one, methods=["GET"]),
            Route("/webhooks/{event_id}/redeliver", self.redeliver, methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        """Newest first, by status."""
        query = query_of(request, {"status", "limit", "cursor"})
        limit = integer("limit", query.get("limit", "50"), 1, 200)
        status, cursor = status_and_cursor(query)
        found, following = await self._notices.page(status=status, limit=limit, cursor=cursor)
        return json_answer(
            200,
            {
                "webhooks": [notice_document(notice) for notice in found],
                "cursor": following,
                "parked": await self._notices.parked(),
            },
        )

    async def one(self, request: Request) -> Response:
        """What is sent, and every attempt."""
        event_id = request.path_params["event_id"]
        notice = await self._notices.get(event_id)
        if notice is None:
            raise _unknown(event_id)
        return json_answer(200, notice_detail(notice))

    async def redeliver(self, request: Request) -> Response:
        """Send it again now, whatever came of it; a day of attempts begins anew."""
        event_id = request.path_params["event_id"]
        if not await self._notices.redeliver(event_id):
            raise _unknown(event_id)
        _log.warning("webhook planned anew", extra={"event": Event.WEBHOOK_REDRIVEN, "event_id": event_id})
        return json_answer(202, {"event_id": event_id, "status": NoticeStatus.PENDING})

    async def redeliver_many(self, request: Request) -> Response:
        """The same for several, or for everything that is parked."""
        order = await _order(request)
        ids = list(dict.fromkeys(order.ids or ()))
        if order.all:
            ids = await parked_ids(self._notices)
        planned = [event_id for event_id in ids if await self._notices.redeliver(event_id)]
        _log.warning("%d webhooks planned anew", len(planned), extra={"event": Event.WEBHOOK_REDRIVEN})
        return json_answer(202, {"planned": planned, "unknown": [one for one in ids if one not in set(planned)]})


def status_and_cursor(query: Mapping[str, str]) -> tuple[NoticeStatus | None, str]:
    """The parameters ``status`` and ``cursor`` of a list.

    Raises:
        Refusal: one is not what it may be.
    """
    wanted = query.get("status")
    if wanted is not None and wanted not in set(NoticeStatus):
        raise Refusal(400, "invalid_request", f"status: one of {', '.join(NoticeStatus)}")
    cursor = query.get("cursor", "")
    if cursor and not _CURSOR.match(cursor):
        raise Refusal(400, "invalid_request", "cursor: not one of ours")
    return NoticeStatus(wanted) if wanted else None, cursor


async def parked_ids(notices: Notices) -> list[str]:
    """The events that are given up, newest first, ``REDELIVER_MOST`` and a page more at most."""
    ids: list[str] = []
    cursor = ""
    while len(ids) < REDELIVER_MOST:
        found, cursor = await notices.page(status=NoticeStatus.PARKED, limit=200, cursor=cursor)
        ids += [notice.event_id for notice in found]
        if not cursor:
            break
    return ids


def _unknown(event_id: str) -> Refusal:
    return Refusal(404, "webhook_not_found", f"there is no webhook {event_id!r} (any more)")


async def _order(request: Request) -> RedeliveryOrder:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES:
            raise Refusal(413, "body_too_large", f"the body may have {BODY_BYTES} bytes")
    try:
        order = msgspec.json.decode(bytes(body), type=RedeliveryOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, "invalid_json", str(error)) from error
    if order.all == (order.ids is not None):
        raise Refusal(400, "invalid_request", "give either ids (a list) or all (true)")
    if order.ids is not None and len(order.ids) > REDELIVER_MOST:
        raise Refusal(400, "invalid_request", f"ids: at most {REDELIVER_MOST}")
    return order
