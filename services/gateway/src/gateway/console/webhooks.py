"""The delivery log of webhooks: which verdict went where, every attempt, and again by hand."""

from __future__ import annotations

import json
import logging
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.console.actions import form_of, one
from gateway.console.pages import Pages
from gateway.console.rendering import link
from gateway.handlers.answers import query_of
from gateway.problems import Refusal
from gateway.webhooks.admin import parked_ids, status_and_cursor
from queuecore.notice import Notices, NoticeStatus
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

NOTICES_SHOWN: Final = 50


class Webhooks:
    """Handlers of the webhooks' pages."""

    def __init__(self, notices: Notices, pages: Pages) -> None:
        self._notices = notices
        self._pages = pages

    async def notices(self, request: Request) -> Response:
        """All, newest first; by status."""
        query = query_of(request, {"status", "cursor", "said", "n"})
        status, cursor = status_and_cursor({name: text for name, text in query.items() if text})
        found, following = await self._notices.page(status=status, limit=NOTICES_SHOWN, cursor=cursor)
        values = {
            "notices": found,
            "cursor": following,
            "at_start": not cursor,
            "status": status or "",
            "statuses": list(NoticeStatus),
            "parked": await self._notices.parked(),
        }
        return await self._pages.show(request, "webhooks.html", values)

    async def notice(self, request: Request) -> Response:
        """One, with what is sent and every attempt."""
        _ = query_of(request, {"said", "n"})
        event_id = request.path_params["id"]
        found = await self._notices.get(event_id)
        if found is None:
            raise Refusal(404, "webhook_not_found", f"There is no webhook {event_id!r} (any more).")
        body = json.dumps(json.loads(found.body), ensure_ascii=False, indent=2)
        return await self._pages.show(request, "webhook.html", {"notice": found, "body": body})

    async def redeliver(self, request: Request) -> Response:
        """One again, or everything that is parked."""
        form = await form_of(request)
        event_id = one(form, "id")
        ids = [event_id] if event_id else await parked_ids(self._notices)
        planned = [known for known in ids if await self._notices.redeliver(known)]
        if event_id and not planned:
            raise Refusal(404, "webhook_not_found", f"There is no webhook {event_id!r} (any more).")
        _log.warning("%d webhooks planned anew", len(planned), extra={"event": Event.WEBHOOK_REDRIVEN})
        target = f"/webhooks/{event_id}" if event_id else "/webhooks"
        return RedirectResponse(link(target, said="redelivering", n=len(planned)), 303)
