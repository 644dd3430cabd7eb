"""Templates, and how times, sizes and foreign texts are written. Everything is escaped unless a template is ours."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from gateway.problems import Refusal
from queuecore.clock import rfc3339

ROOT: Final = "/console"
_STEPS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_ONE_KIB: Final = 1024
_ONE_SECOND_MS: Final = 1_000


def link(path: str, **query: str | int | None) -> str:
    """A link of the console; parameters that are None or "" are left out."""
    given = {name: value for name, value in query.items() if value not in {None, ""}}
    return f"{ROOT}{path}" + (f"?{urlencode(given)}" if given else "")


def duration(milliseconds: float | None) -> str:
    """Two units at most: `3 d 4 h`, `59 s`, `120 ms`."""
    if milliseconds is None:
        return "-"
    left = round(milliseconds)
    if left < _ONE_SECOND_MS:
        return f"{left} ms"
    for index, (size, unit) in enumerate(_STEPS):
        if left >= size:
            first = f"{left // size} {unit}"
            if index + 1 == len(_STEPS) or left % size < _STEPS[index + 1][0]:
                return first
            smaller, smaller_unit = _STEPS[index + 1]
            return f"{first} {left % size // smaller} {smaller_unit}"
    raise AssertionError(left)


def age(milliseconds: float | None) -> str:
    """A duration that somebody watches: nothing below a second, which would only flicker."""
    return "< 1 s" if milliseconds is not None and milliseconds < _ONE_SECOND_MS else duration(milliseconds)


def size(count: int | None) -> str:
    """Bytes in the unit that keeps the number short."""
    if count is None:
        return "-"
    amount, unit = float(count), 0
    while amount >= _ONE_KIB and unit + 1 < len(_UNITS):
        amount, unit = amount / _ONE_KIB, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def number(count: float) -> str:
    """With thin spaces between thousands."""
    return f"{count:,}".replace(",", "\u202f")


def day_and_time(milliseconds: int) -> str:
    """For people, in UTC, to the second."""
    return rfc3339(milliseconds)[:19].replace("T", " ")


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("gateway.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "age": age,
        "duration": duration,
        "size": size,
        "number": number,
        "day_and_time": day_and_time,
        "rfc3339": rfc3339,
    }
    ours: dict[str, Any] = {"link": link, "root": ROOT}
    made.globals.update(ours)
    return made


_TEMPLATES: Final = _environment()


def page(
    request: Request,
    template: str,
    values: Mapping[str, Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """A page. Texts may hold what cannot be UTF-8; that is replaced."""
    text = _TEMPLATES.get_template(template).render(path=request.url.path, **_common(request), **values)
    return HTMLResponse(text.encode("utf-8", "replace"), status, dict(headers or {}))


def refusal_page(request: Request, refusal: Refusal) -> HTMLResponse:
    """A refusal as a page, with the code that the API has for it."""
    values = {"title": HTTPStatus(refusal.status).phrase, "refusal": refusal}
    return page(request, "refusal.html", values, refusal.status, refusal.headers)


def _common(request: Request) -> dict[str, Any]:
    signs = getattr(getattr(request.scope.get("app"), "state", None), "sessions", None)
    return {"can_sign_out": signs is not None and signs.enabled and request.url.path != f"{ROOT}/login"}
