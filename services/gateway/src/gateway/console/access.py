"""Who is let into the console, and the headers that every answer of it carries.

The API of this port takes a bearer token with every request. A browser cannot send one by itself, so it signs in once
with the same token and gets a cookie that proves it. The proof is an HMAC with the token as its key: nothing is kept
here, every gateway of the fleet accepts it, and another token ends every session.

A cookie knows no port: a page of another server on the same host counts as the same site, and the browser sends it our
cookie too. So forms must carry our own Origin, and the cookie never opens the API.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin import check_addressee, netloc_of
from gateway.console.rendering import ROOT, refusal_page
from gateway.problems import Refusal, refusal_of
from queuecore.broker import Server
from queuecore.errors import BrokerError

COOKIE: Final = "relayq_console"
SESSION_SECONDS: Final = 12 * 3600
FORM_TYPE: Final = "application/x-www-form-urlencoded"
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: with that, browsers send forms with "Origin: null".
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_OPEN: Final = (f"{ROOT}/login", f"{ROOT}/assets/")


class Sessions:
    """Sign in, and know again who has. ``enabled`` is False where no token is configured: everybody is in."""

    def __init__(self, token: str, server: Server) -> None:
        self._token = token.encode()
        self._server = server
        self.enabled = bool(token)

    def knows(self, token: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(token.strip().encode("utf-8", "replace"), self._token)

    async def begin(self, request: Request, answer: Response) -> None:
        """Put the cookie on ``answer``."""
        ends = await self._server.now_ms() // 1000 + SESSION_SECONDS
        answer.set_cookie(
            COOKIE, f"{ends}.{self._proof(ends)}", path=ROOT, httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip

    def end(self, answer: Response) -> None:
        """Take the cookie away."""
        answer.delete_cookie(COOKIE, path=ROOT, httponly=True, samesite="strict")

    async def lets_in(self, request: Request) -> bool:
        """Whether the request may see pages."""
        if not self.enabled:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.knows(given):
            return True
        ends, _, proof = request.cookies.get(COOKIE, "").partition(".")
        if not (ends.isascii() and ends.isdigit() and len(ends) <= 12):  # noqa: PLR2004  digits of a second
            return False
        genuine = hmac.compare_digest(proof.encode("utf-8", "replace"), self._proof(int(ends)).encode())
        return genuine and await self._server.now_ms() < int(ends) * 1000

    def _proof(self, ends: int) -> str:
        return hmac.new(self._token, f"relayq console session until {ends}".encode(), hashlib.sha256).hexdigest()


class Access:
    """ASGI middleware around the console."""

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, refuse, or ask to sign in."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await (await self._app_for(Request(scope)))(scope, receive, _with_headers(send))

    async def _app_for(self, request: Request) -> ASGIApp:
        try:
            _check(request.headers, request.method, any_host=self._sessions.enabled)
            if request.url.path.startswith(_OPEN) or await self._sessions.lets_in(request):
                return self._app
        except Refusal as refusal:
            return refusal_page(request, refusal)
        except BrokerError as error:
            return refusal_page(request, refusal_of(error))
        if request.method not in {"GET", "HEAD"}:
            return refusal_page(request, Refusal(401, "unauthorized", "Sign in, then do this again."))
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{ROOT}/login?next={quote(wanted, safe='')}", 303)


def _check(headers: Headers, method: str, *, any_host: bool) -> None:
    """Refuse what no page of ours sent.

    Raises:
        Refusal: 403 or 415.
    """
    check_addressee(headers, any_host=any_host)
    site = headers.get("sec-fetch-site", "none")
    if method in {"GET", "HEAD"}:
        # A link from elsewhere, a runbook say, may lead here; it changes nothing, and no frame can show it.
        if site not in {"none", "same-origin"} and headers.get("sec-fetch-mode") != "navigate":
            raise Refusal(403, "forbidden_origin", "Other sites may link to this page and nothing else.")
        return
    if site not in {"none", "same-origin"} or not netloc_of(headers.get("origin", "")):
        raise Refusal(403, "forbidden_origin", "Forms are taken from this console's own pages only.")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
        raise Refusal(415, "unsupported_media_type", f"A form is {FORM_TYPE}.")


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sending
