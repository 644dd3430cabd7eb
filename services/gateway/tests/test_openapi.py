"""The description of the public port: current, valid, complete, and readable without any network."""

from __future__ import annotations

import ast
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_stack import MODELS, MakeStack, Stack
from openapi_spec_validator import OpenAPIV31SpecValidator

import gateway
from gateway import problems, requests
from gateway.openapi.document import METHODS, document_of, operations, source
from gateway.openapi.page import page_of
from gateway.routes import ROUTES
from gateway.settings import GatewaySettings
from gateway.webhooks.notice import notice_of
from gateway.webhooks.sign import signed
from queuecore.broker import OutboxEvent
from queuecore.config import parse_config
from queuecore.errors import QueueCoreError
from queuecore.job import Status

pytestmark = pytest.mark.anyio

SOURCES = Path(gateway.__file__).parent
ADMIN_PORT = {"admin", "console"}
EVERY_MODE: list[dict[str, Any]] = [
    {"auth": "none"},
    {"auth": "api-key"},
    {"auth": "header", "tenant_header": "X-Team", "priority_header": "X-Urgent"},
]


def document(**settings: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"auth": "none", **settings}
    return document_of(GatewaySettings(**given), parse_config(MODELS))


def codes_in_sources() -> set[str]:
    """Every literal that the public port hands on as a problem's code, behind its status."""
    found: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        if ADMIN_PORT & {path.stem, *path.relative_to(SOURCES).parent.parts}:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and len(node.args) > 2 and ast.unparse(node.func) != "Row":
                status, code = node.args[0], node.args[1]
                if isinstance(status, ast.Constant) and isinstance(code, ast.Constant):
                    number, text = status.value, code.value
                    if isinstance(number, int) and 400 <= number < 600 and isinstance(text, str):
                        found.add(text)
    return found


# -- what it says against what there is ---------------------------------------------------------------------------


def test_every_route_is_described_and_nothing_else() -> None:
    routed = {(route.path, method) for route in ROUTES for method in (route.methods or set()) - {"HEAD"}}
    described = {(path, method.upper()) for path, method, _ in operations(document())}

    assert described == routed


@pytest.mark.parametrize("settings", EVERY_MODE, ids=lambda settings: settings["auth"])
def test_document_is_valid_openapi_3_1(settings: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(document(**settings)).validate()


def test_every_code_of_the_problem_table_is_described_with_its_status() -> None:
    codes = source()["x-codes"]

    for error, row in problems.TABLE.items():
        assert issubclass(error, QueueCoreError)
        assert codes[error.code]["status"] == row.status, error


def test_every_code_in_the_sources_is_described_and_every_described_one_is_in_the_sources() -> None:
    codes = set(source()["x-codes"])
    of_errors = {error.code for error in problems.TABLE if issubclass(error, QueueCoreError)}
    literals = codes_in_sources()

    assert literals <= codes
    written = "".join(path.read_text("utf-8") for path in SOURCES.rglob("*.py"))
    assert {code for code in codes - of_errors if f'"{code}"' not in written} == set()


def test_every_described_code_is_answered_by_an_operation() -> None:
    answered = {
        code
        for _, _, operation in operations(document(auth="api-key", priority_header="X-Urgent"))
        for response in operation["responses"].values()
        for content in response.get("content", {}).values()
        for code in content["schema"].get("properties", {}).get("code", {}).get("enum", ())
    }

    assert set(source()["x-codes"]) - answered == {"claim_lost"}


@pytest.mark.parametrize("auth", ["header", "none"])
def test_only_keys_have_rights_and_budgets(auth: str) -> None:
    codes = {
        code
        for _, _, operation in operations(document(auth=auth))
        for response in operation["responses"].values()
        for content in response.get("content", {}).values()
        for code in content["schema"].get("properties", {}).get("code", {}).get("enum", ())
    }

    assert not codes & {"forbidden", "too_many_requests", "too_many_failures", "too_many_bytes"}


def test_every_described_code_is_in_the_list_that_people_read() -> None:
    page = (Path(__file__).parents[3] / "docs/http-api.md").read_text("utf-8")

    assert {code for code in source()["x-codes"] if f"`{code}`" not in page} == set()


async def test_members_of_the_documents_are_those_that_are_described(stack: Stack) -> None:
    schemas = document()["components"]["schemas"]
    url = (await stack.client.post("/jobs/echo?model=large", content=b"x")).headers["location"]
    await stack.complete(await stack.claim("large"), b"{}")
    job = (await stack.client.get(url)).json()
    model = (await stack.client.get("/models")).json()["models"][0]
    page = (await stack.client.get("/jobs")).json()

    assert list(job) == schemas["Job"]["required"]
    assert list(schemas["Job"]["properties"]) == [*job, "deduplicated"]
    assert list(job["result"]) == list(schemas["Result"]["properties"])
    assert list(model) == list(schemas["ModelState"]["properties"]) == schemas["ModelState"]["required"]
    assert list(model["queue"]) == list(schemas["ModelState"]["properties"]["queue"]["properties"])
    assert list(page) == list(schemas["JobPage"]["properties"])


async def test_models_show_their_limits_as_described(stack: Stack) -> None:
    described = document()["components"]["schemas"]["ModelState"]["properties"]
    models = {model["name"]: model for model in (await stack.client.get("/models")).json()["models"]}
    limited, free = models["meta-llama/Llama-3.1-8B"], models["small"]

    assert limited["provider"] == {
        "name": "acme", "requests_per_minute": 60, "tokens_per_minute": 0, "concurrent": 5
    }  # fmt: skip
    assert list(limited["provider"]) == list(described["provider"]["properties"])
    assert limited["gates"] == [{"type": "rate", "limit": 7, "window_seconds": 60, "unit": "tokens"}]
    assert (free["provider"], free["gates"]) == (None, [])


async def test_the_tokens_a_client_allows_are_in_the_record(stack: Stack) -> None:
    body = {"input": {"messages": []}, "params": {"max_tokens": 321}}
    answer = await stack.client.post("/jobs/chat", json=body)
    assert answer.status_code == 202, answer.text
    record = await stack.brokers["meta-llama/Llama-3.1-8B"].get(answer.json()["job_id"])
    assert record.tokens_estimate == 321


async def test_webhook_is_what_is_described(stack: Stack) -> None:
    document_with_secrets = document(webhook_secrets_file="secrets")
    described = document_with_secrets["components"]["schemas"]["Verdict"]
    _ = await stack.client.post("/jobs/echo?model=large&callback_url=https://receiver.invalid", content=b"x")
    claim = await stack.claim("large")
    await stack.complete(claim, b"{}")
    record = await stack.brokers["large"].get(claim.job_id)
    assert record.finished_at is not None
    notice = notice_of(OutboxEvent("1-0", record.event_id, record.id, Status.COMPLETED, record.finished_at), record)
    assert notice is not None
    body = msgspec.json.decode(notice.body)
    headers = signed(notice.event_id, 0, b"", [b"secret"])
    parameters = document_with_secrets["webhooks"]["verdict"]["post"]["parameters"]

    assert list(body) == list(described["properties"]) == described["required"]
    assert body["type"] in described["properties"]["type"]["enum"]
    assert {one["name"] for one in parameters} == set(headers)
    assert len(document()["webhooks"]["verdict"]["post"]["parameters"]) == 2


def test_options_are_those_that_the_gateway_knows() -> None:
    operation = document()["paths"]["/jobs/{service_type}"]["post"]
    form = operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
    names = [one["$ref"].rpartition("/")[2] for one in operation["parameters"] if "$ref" in one]
    query = {document()["components"]["parameters"][name]["name"] for name in names}

    words = {word for transport in requests._PRIORITIES.values() for word in transport}
    assert set(document()["components"]["schemas"]["PriorityText"]["enum"]) == words
    assert set(form) - {"file"} == set(body) - {"input"} == query == set(requests.KNOWN)


# -- what it takes from the configuration ------------------------------------------------------------------------


def test_models_limits_and_headers_are_those_of_this_gateway() -> None:
    plain, strict = document(), document(auth="header", tenant_header="X-Team", priority_header="X-Urgent")
    text = msgspec.json.encode(document(max_json_bytes=4711)).decode()

    assert plain["components"]["schemas"]["Model"]["enum"] == list(parse_config(MODELS).models)
    assert plain["components"]["schemas"]["Operation"]["enum"] == ["transcribe", "complete", "echo", "other"]
    assert "JSON has 4711 at most" in text
    assert "${" not in text
    assert "x-" not in {name[:2] for name in plain}
    assert document() == plain, "making one document changes nothing of the next"
    assert plain["security"] == []
    assert strict["components"]["securitySchemes"]["caller"]["name"] == "X-Team"
    for described, expected in ((plain, False), (strict, True)):
        post = described["paths"]["/jobs/{service_type}"]["post"]
        assert ("X-Urgent" in {one.get("name") for one in post["parameters"]}) is expected
        assert ("401" in post["responses"]) is expected
        assert "401" not in described["paths"]["/docs"]["get"]["responses"]


def test_api_keys_and_their_limits_are_described_where_they_are_asked_for() -> None:
    described = document(auth="api-key")
    page = page_of(described)

    assert described["components"]["securitySchemes"]["caller"]["scheme"] == "bearer"
    assert "Authorization: bearer" in page
    for path, _, operation in operations(described):
        told = {name for name, answer in operation["responses"].items() if "RateLimit" in answer.get("headers", {})}
        assert ("200" in told or "204" in told) is path.startswith(("/jobs", "/pipelines", "/models")), path
    assert "RateLimit" not in msgspec.json.encode(document()["paths"]).decode()


# -- how it is served ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content_type"), [("/openapi.json", "application/json"), ("/docs", "text/html; charset=utf-8")]
)
async def test_both_are_public_and_cacheable(make_stack: MakeStack, path: str, content_type: str) -> None:
    stack = await make_stack(auth="header")
    first = await stack.client.get(path)
    again = await stack.client.get(path, headers={"if-none-match": first.headers["etag"]})
    head = await stack.client.head(path)

    assert (first.status_code, first.headers["content-type"]) == (200, content_type)
    assert first.headers["cache-control"] == "public, max-age=60"
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert (head.status_code, head.content) == (200, b"")


class Page(HTMLParser):
    """Which elements and targets a page has; an element that is not closed is an error."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.targets: set[str] = set()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.targets |= {value for name, value in attrs if name in {"href", "src"} and value}
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


async def test_page_needs_no_script_and_no_other_request(stack: Stack) -> None:
    response = await stack.client.get("/docs")
    page = Page()
    page.feed(response.text)

    assert page.open == []
    assert page.tags.isdisjoint({"script", "img", "link", "iframe", "form", "object"})
    assert {target for target in page.targets if not target.startswith("#")} == {"openapi.json"}
    assert {target[1:] for target in page.targets if target.startswith("#")} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


async def test_page_shows_every_operation_parameter_and_code(stack: Stack) -> None:
    page = Page()
    page.feed((await stack.client.get("/docs")).text)
    described = (await stack.client.get("/openapi.json")).json()

    for path, method, operation in operations(described):
        assert f"{method.upper()} {path}" in page.text
        for parameter in operation.get("parameters", ()):
            assert parameter.get("name", "") in page.text
    assert "POST verdict" in page.text
    for code in described["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]:
        assert code in page.text
    assert not re.search(r"#/components|\$ref|\[\]\(", page.text)


def test_names_of_the_configuration_cannot_break_out_of_the_page() -> None:
    made = document()
    made["components"]["schemas"]["Model"]["enum"] = ["<script>alert(1)</script>"]
    made["info"]["summary"] = '"><img src=x onerror=alert(1)>'

    text = page_of(made)

    assert "<script" not in text
    assert "<img" not in text


def test_methods_of_an_item_are_all_that_openapi_has() -> None:
    assert {method.lower() for route in ROUTES for method in route.methods or ()} <= METHODS
