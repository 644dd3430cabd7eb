"""The JSON answers of all handlers, and how query parameters are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.problems import Refusal


def json_answer(status: int, value: object, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response that no cache keeps."""
    return Response(
        msgspec.json.encode(value), status, {"cache-control": "no-store", **(headers or {})}, "application/json"
    )


def query_of(request: Request, known: Collection[str]) -> dict[str, str]:
    """The query's parameters, each once.

    Raises:
        Refusal: one that is not ``known`` (a misspelt filter would silently match everything), or one given twice.
    """
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise Refusal(400, "invalid_request", f"{name!r}: unknown parameter; known: {', '.join(sorted(known))}")
        if name in found:
            raise Refusal(400, "invalid_request", f"{name}: given twice")
        found[name] = value
    return found


def integer(name: str, text: str, least: int, most: int) -> int:
    """A bounded integer.

    Raises:
        Refusal: naming the bounds.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):  # noqa: PLR2004
        raise Refusal(400, "invalid_request", f"{name}: a whole number from {least} to {most}")
    return int(text)
