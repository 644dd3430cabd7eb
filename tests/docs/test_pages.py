"""Pages that list what the code has: nothing is missing, nothing is made up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import pytest

from gateway.problems import TABLE
from gateway.routes import ROUTES
from queuecore.config import Config, ModelConfig, Operation, Pipeline, Retries, parse_config
from queuecore.errors import ConfigurationError, QueueCoreError
from queuecore.job import ErrorCode
from queuecore.providers import Provider

ROOT: Final = Path(__file__).parents[2]
GATEWAY: Final = ROOT / "services/gateway/src/gateway"
PAGE: Final = (ROOT / "docs/http-api.md").read_text("utf-8")
MODELS: Final = (ROOT / "docs/models.md").read_text("utf-8")
_ANSWERED: Final = re.compile(r'\b(?:(?:Refusal|problem|document|_refuse)\(\s*\d{3},|_refusal\()\s*"([a-z_]+)"')


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
    listed = set(re.findall(r"`([a-z_]+)`", table)) - {"params", "cause", "retention_over", "deleted"}
    known = answered() | {error.code for error in TABLE if issubclass(error, QueueCoreError)}

    chosen = {"method_not_allowed", "route_not_found", "model_missing"}  # by an expression, so not found above
    assert listed - known == chosen


def test_every_cause_of_a_failed_job_is_on_the_http_page() -> None:
    assert sorted(code for code in get_args(ErrorCode) if f"`{code}`" not in PAGE) == []


def test_every_route_is_on_the_http_page() -> None:
    assert [route.path for route in ROUTES if route.path not in PAGE] == []


# -- models.yaml ------------------------------------------------------------------------------------------------


def rows(section: str) -> dict[str, str]:
    """Key -> default, of the table under a heading."""
    text = re.split(r"^## ", MODELS.partition(f"\n## {section}\n")[2], flags=re.MULTILINE)[0]
    return {key: default.strip("`") for key, default in re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text, re.MULTILINE)}


def shown(field: Any) -> str:
    if field.required:
        return "required"
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return "none" if default in (None, [], {}, Retries()) else json.dumps(default).strip('"')


@pytest.mark.parametrize(
    ("section", "cls"),
    [
        ("A model", ModelConfig), ("An operation", Operation), ("Retries", Retries), ("Providers", Provider),
        ("Pipelines", Pipeline),
    ],
)  # fmt: skip
def test_the_models_page_has_each_key_with_its_default(section: str, cls: type[msgspec.Struct]) -> None:
    assert rows(section) == {field.name: shown(field) for field in msgspec.structs.fields(cls)}


def test_the_models_page_shows_every_section_and_its_example_is_accepted() -> None:
    config = parse_config(MODELS.partition("```yaml\n")[2].partition("```")[0])

    assert {name for name in Config.__struct_fields__ if not getattr(config, name)} == set()


def test_the_models_page_says_which_files_are_refused() -> None:
    for example in re.findall(r"```yaml refused\n(.*?)```", MODELS, re.DOTALL):
        with pytest.raises(ConfigurationError):
            _ = parse_config(example)


# -- links ------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """As the usual renderers make them of headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", documents(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    broken: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if link.startswith(("http://", "https://")):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            broken.append(link)
    assert broken == []
