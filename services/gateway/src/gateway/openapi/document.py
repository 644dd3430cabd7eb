"""The OpenAPI document of one gateway: ``public.yaml``, filled in with what this gateway runs with.

What a program can know is never written twice: models and limits come from the running configuration, bounds from the
constants of the code that checks them, and an operation's problem responses from the codes it names.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import Any, Final, cast, get_args

import yaml

from gateway import form, idempotency, protocol
from gateway.handlers import events, jobs, waiting
from gateway.problems import CONTENT_TYPE
from gateway.settings import GatewaySettings
from gateway.webhooks import deliver, guard, schedule
from queuecore.broker import LONGEST_DEDUP_KEY
from queuecore.config import Config
from queuecore.job import TERMINAL, ErrorCode, Status
from queuecore.scoring import BONUSES

Document = dict[str, Any]

METHODS: Final = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})
_VALUE: Final = re.compile(r"\$\{(\w+)\}")
_SCHEME: Final = "caller"
_CHOICES: Final = {"#/components/parameters/Model", "#/components/parameters/Operation"}  # a pipeline has made them
_OF_RUNS: Final = {"options": "run_options"}
_WITH_RATE_LIMIT: Final = frozenset({"200", "202", "204", "206", "304", "429"})
_HEADERS_OF: Final = {401: ("WWW-Authenticate", "WwwAuthenticate"), 405: ("Allow", "Allow"),
                      416: ("Content-Range", "UnsatisfiedRange")}  # fmt: skip


@cache
def source() -> Document:
    """``public.yaml`` as it is written; not to be changed."""
    text = resources.files("gateway.openapi").joinpath("public.yaml").read_text("utf-8")
    return cast("Document", yaml.safe_load(text))


def document_of(settings: GatewaySettings, config: Config) -> Document:
    """The document; JSON can be made of it as it is."""
    written = source()
    groups = written["x-groups"]
    values = _values(settings, config) | {"codes": list(written["x-codes"])}
    scheme = _security_scheme(settings)
    codes = _filled(written["x-codes"], values)
    document = cast("Document", _filled({name: part for name, part in written.items() if name[:2] != "x-"}, values))
    document["paths"] |= _pipeline_paths(document["paths"], list(config.pipelines))
    document["security"] = [{_SCHEME: []}] if scheme else []
    if scheme:
        document["components"]["securitySchemes"] = {_SCHEME: scheme}
    for _, _, operation in operations(document):
        names = ["any", *operation.pop("x-problems")]
        authenticated = bool(operation.get("security", document["security"]))
        by_key = authenticated and settings.auth == "api-key"
        if authenticated:
            names.append("caller")
        if by_key:
            names.append("key_of_caller")
        wanted = _codes(names, groups)
        _add_problems(operation, codes, wanted if by_key else [one for one in wanted if one != "too_many_bytes"])
        if by_key:
            _add_rate_limit(operation)
    return document


def _pipeline_paths(paths: Document, pipelines: list[str]) -> Document:
    """The routes of runs: those of jobs, with a pipeline where a service type stands."""
    schema = {"type": "string", "enum": pipelines} if pipelines else {"type": "string"}
    name = {"name": "pipeline", "in": "path", "required": True, "description": "The pipeline.", "schema": schema}
    found: Document = {}
    for path, item in paths.items():
        if not path.startswith("/jobs/{service_type}"):
            continue
        made: Document = copy.deepcopy(item)
        made["parameters"] = [name, *made["parameters"][1:]]
        for method in METHODS & made.keys():
            operation = made[method]
            operation["operationId"] = re.sub("Job$", "", operation["operationId"]) + "Run"
            operation["tags"] = ["pipelines"]
            operation["summary"] = operation["summary"].replace("job", "run")
            operation["x-problems"] = [_OF_RUNS.get(code, code) for code in operation["x-problems"]]
            if "parameters" in operation:
                operation["parameters"] = [one for one in operation["parameters"] if one.get("$ref") not in _CHOICES]
            for response in operation["responses"].values():
                _ = response.pop("links", None)
                answer = response.get("content", {}).get("application/json")
                if answer == {"schema": {"$ref": "#/components/schemas/Job"}}:
                    answer["schema"] = {"$ref": "#/components/schemas/Run"}
            for body in operation.get("requestBody", {}).get("content", {}).values():
                for choice in ("model", "operation"):
                    _ = body["schema"].get("properties", {}).pop(choice, None)
        found[path.replace("/jobs/{service_type}", "/pipelines/{pipeline}")] = made
    return found


def operations(document: Document) -> Iterable[tuple[str, str, Document]]:
    """(path, method, operation) of each one."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method in METHODS:
                yield path, method, operation


def _values(settings: GatewaySettings, config: Config) -> dict[str, Any]:
    return {
        "version": version("relayq-gateway"),
        "service_types": config.service_types,
        "models": list(config.models),
        "operations": list(dict.fromkeys(name for model in config.models.values() for name in model.operations)),
        "priority_header": settings.priority_header,
        "max_upload_bytes": settings.max_upload_bytes,
        "max_json_bytes": settings.max_json_bytes,
        "upload_idle_seconds": settings.upload_idle_seconds,
        "statuses": [str(status) for status in Status],
        "terminal": [str(status) for status in Status if status in TERMINAL],
        "error_codes": list(get_args(ErrorCode)),
        "content_classes": list(BONUSES),
        "longest_dedup_key": LONGEST_DEDUP_KEY,
        "event_types": [f"job.{status}" for status in Status if status in TERMINAL],
        "longest_url": guard.LONGEST_URL,
        "longest_key": idempotency.LONGEST_KEY,
        "longest_wait": jobs.LONGEST_WAIT_SECONDS,
        "longest_prefer": waiting.LONGEST_WAIT_SECONDS,
        "progress_seconds": events.PROGRESS_SECONDS,
        "comment_seconds": events.COMMENT_SECONDS,
        "webhook_secrets_file": settings.webhook_secrets_file,
        "webhook_seconds": deliver.DEADLINE_SECONDS,
        "webhook_hours": schedule.WHOLE_MS // 3_600_000,
        "largest_page": jobs.LARGEST_PAGE,
        "most_fields": form.MOST_FIELDS,
        "longest_name": form.LONGEST_NAME,
        "field_bytes": form.FIELD_BYTES,
        "fields_bytes": form.FIELDS_BYTES,
        "framing_bytes": form.FRAMING_BYTES,
        "head_bytes": protocol.HEAD_BYTES,
        "head_seconds": protocol.HEAD_SECONDS,
    }


def _security_scheme(settings: GatewaySettings) -> Document | None:
    match settings.auth:
        case "api-key":
            return {
                "type": "http",
                "scheme": "bearer",
                "description": "An API key; it belongs to a tenant and has rights.",
            }
        case "header":
            return {
                "type": "apiKey",
                "in": "header",
                "name": settings.tenant_header,
                "description": "Set by the proxy that authenticates callers; names the tenant.",
            }
        case "none":
            return None


# -- filling in ---------------------------------------------------------------------------------------------------


def _filled(node: object, values: Mapping[str, Any]) -> Any:
    """The node with its ``${name}``s. A text that is nothing else becomes the value itself; a list takes in lists."""
    if isinstance(node, str):
        whole = _VALUE.fullmatch(node)
        return values[whole[1]] if whole else _VALUE.sub(lambda found: _text(values[found[1]]), node)
    if isinstance(node, dict):
        members = cast("dict[Any, object]", node)
        return {str(name): _filled(value, values) for name, value in members.items()}
    if isinstance(node, list):
        return list(_items(cast("list[object]", node), values))
    return node


def _items(nodes: Iterable[object], values: Mapping[str, Any]) -> Iterator[Any]:
    for node in nodes:
        if isinstance(node, dict):
            members = dict(cast("Document", node))
            condition = members.pop("x-when", None)
            if condition is None or values[condition]:
                yield _filled(members, values)
            continue
        made = _filled(node, values)
        if isinstance(made, list) and isinstance(node, str):
            yield from cast("list[Any]", made)
        else:
            yield made


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(one) for one in cast("list[object]", value))
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- problems -----------------------------------------------------------------------------------------------------


def _codes(names: Iterable[str], groups: Mapping[str, list[str]]) -> list[str]:
    return list(dict.fromkeys(code for name in names for code in groups.get(name, [name])))


def _add_problems(operation: Document, codes: Mapping[str, Document], wanted: Iterable[str]) -> None:
    """A response a status, which says each code that comes with it."""
    by_status: dict[int, list[str]] = {}
    for code in wanted:
        by_status.setdefault(codes[code]["status"], []).append(code)
    for status, mine in sorted(by_status.items()):
        operation["responses"][str(status)] = _problem(status, mine, codes)


def _add_rate_limit(operation: Document) -> None:
    for status, response in operation["responses"].items():
        if status in _WITH_RATE_LIMIT:
            response.setdefault("headers", {}).update(
                {
                    "RateLimit": {"$ref": "#/components/headers/RateLimit"},
                    "RateLimit-Policy": {"$ref": "#/components/headers/RateLimitPolicy"},
                }
            )


def _problem(status: int, mine: list[str], codes: Mapping[str, Document]) -> Document:
    headers: Document = {}
    if status in _HEADERS_OF:
        name, component = _HEADERS_OF[status]
        headers[name] = {"$ref": f"#/components/headers/{component}"}
    if any("retry_after" in codes[code] for code in mine):
        headers["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
    response: Document = {
        "description": "\n".join(f"* `{code}`: {codes[code]['text']}" for code in mine),
        "content": {
            CONTENT_TYPE: {
                "schema": {
                    "allOf": [{"$ref": "#/components/schemas/Problem"}],
                    "properties": {"status": {"const": status}, "code": {"enum": mine}},
                }
            }
        },
    }
    return response | {"headers": headers} if headers else response
