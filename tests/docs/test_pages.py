"""Pages that list what the code has: nothing is missing, nothing is made up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, get_args

from gateway.problems import TABLE
from gateway.routes import ROUTES
from queuecore.errors import QueueCoreError
from queuecore.job import ErrorCode

ROOT: Final = Path(__file__).parents[2]
GATEWAY: Final = ROOT / "services/gateway/src/gateway"
PAGE: Final = (ROOT / "docs/http-api.md").read_text("utf-8")
_ANSWERED: Final = re.compile(r'\b(?:Refusal|problem|document|_refuse)\(\s*\d{3},\s*"([a-z_]+)"')


def answered() -> set[str]:
    """Every code that a source of the gateway answers, and those of the exceptions that it translates."""
    text = "".join(path.read_text("utf-8") for path in GATEWAY.rglob("*.py"))
    raised = {error.code for error, row in TABLE.items() if issubclass(error, QueueCoreError) and row.status != 500}
    return set(_ANSWERED.findall(text)) | raised


def test_every_code_that_can_be_answered_is_on_the_http_page() -> None:
    assert len(answered()) > 30
    assert sorted(code for code in answered() if f"`{code}`" not in PAGE) == []


def test_no_code_on_the_http_page_is_made_up() -> None:
    table = PAGE.partition("## Problems")[2].partition("\nA failed job")[0]
    listed = set(re.findall(r"`([a-z_]+)`", table)) - {"params"}
    known = answered() | {error.code for error in TABLE if issubclass(error, QueueCoreError)}

    assert listed - known == {"method_not_allowed", "route_not_found"}, "these two are what Starlette's router raises"


def test_every_cause_of_a_failed_job_is_on_the_http_page() -> None:
    assert sorted(code for code in get_args(ErrorCode) if f"`{code}`" not in PAGE) == []


def test_every_route_is_on_the_http_page() -> None:
    assert [route.path for route in ROUTES if route.path not in PAGE] == []
