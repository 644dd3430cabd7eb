"""``GET /openapi.json`` and ``GET /docs``: made once at start, the same for everybody, cacheable."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.documents import matches
from gateway.openapi.document import document_of
from gateway.openapi.page import POLICY, page_of
from gateway.settings import GatewaySettings
from queuecore.config import Config


@dataclass(frozen=True, slots=True)
class Reference:
    """The two representations of this gateway's description."""

    document: Cached
    page: Cached


@dataclass(frozen=True, slots=True)
class Cached:
    """Bytes with their validator."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, body: bytes, content_type: str, **headers: str) -> Cached:
        """With the headers of every answer."""
        return cls(
            body,
            {
                "etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
                "cache-control": "public, max-age=60",
                "content-type": content_type,
                "x-content-type-options": "nosniff",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            },
        )

    def answer(self, request: Request) -> Response:
        """200, or 304 for a client that has it."""
        if matches(request.headers.get("if-none-match"), self.headers["etag"]):
            return Response(status_code=304, headers=self.headers)
        return Response(self.body, headers=self.headers)


def reference(settings: GatewaySettings, config: Config) -> Reference:
    """Make both."""
    document = document_of(settings, config)
    return Reference(
        Cached.of(msgspec.json.encode(document), "application/json"),
        Cached.of(
            page_of(document).encode(),
            "text/html; charset=utf-8",
            content_security_policy=POLICY,
            referrer_policy="no-referrer",
        ),
    )


async def openapi(request: Request) -> Response:
    """``GET /openapi.json``."""
    return _reference_of(request).document.answer(request)


async def docs(request: Request) -> Response:
    """``GET /docs``."""
    return _reference_of(request).page.answer(request)


def _reference_of(request: Request) -> Reference:
    return cast("Reference", request.app.state.reference)
