"""The document as one HTML page, written on the server: no script, no font, no other request, nothing to be fooled by.

Descriptions may use this much of CommonMark: paragraphs, ``* `` lists, and code in backticks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from html import escape
from importlib import resources
from typing import Any, Final

from gateway.openapi.document import Document, operations

_STYLE: Final = resources.files("gateway.openapi").joinpath("page.css").read_text("utf-8")
POLICY: Final = (
    "default-src 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_CODE: Final = re.compile(r"`([^`]+)`")


def page_of(document: Document) -> str:
    """The page."""
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    return "".join((
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}: HTTP interface</title><style>{_STYLE}</style></head><body>",
        '<a class="skip" href="#main">Skip to the calls</a>',
        f'<header><h1>{title}</h1><p>{escape(info["summary"])}</p>{_prose(info["description"])}',
        '<p>The same for programs: <a href="openapi.json">openapi.json</a> (OpenAPI 3.1).</p></header>',
        _contents(document), '<main id="main">', _callers(document),
        *(_tag(document, tag) for tag in document["tags"]),
        '<h2 id="webhooks">webhooks</h2>',
        *(_operation(document, name, "post", hook["post"]) for name, hook in document["webhooks"].items()),
        '<h2 id="schemas">Schemas</h2>',
        *(_schema(document, name) for name in document["components"]["schemas"]),
        "</main></body></html>\n",
    ))  # fmt: skip


# -- parts --------------------------------------------------------------------------------------------------------


def _contents(document: Document) -> str:
    parts = ['<nav aria-label="Contents">']
    for tag in document["tags"]:
        parts.append(f"<h2>{escape(tag['name'])}</h2><ul>")
        for _, method, operation in _tagged(document, tag):
            link = f'<a href="#{escape(operation["operationId"])}">{escape(operation["summary"])}</a>'
            parts.append(f"<li>{_method(method)} {link}</li>")
        parts.append("</ul>")
    return "".join([*parts, '<p><a href="#webhooks">Webhooks</a> · <a href="#schemas">Schemas</a></p></nav>'])


def _callers(document: Document) -> str:
    schemes = document["components"].get("securitySchemes", {})
    rows = [
        [_code(scheme.get("name") or f"Authorization: {scheme.get('scheme', '')}"), _prose(scheme["description"])]
        for scheme in schemes.values()
    ]
    return "<h2>Who calls</h2>" + (
        _table(["header", "meaning"], rows) if rows else "<p>Everybody is one tenant; no credentials are asked for.</p>"
    )


def _tag(document: Document, tag: Document) -> str:
    shown = (_operation(document, *found) for found in _tagged(document, tag))
    return f"<h2>{escape(tag['name'])}</h2>{_prose(tag['description'])}{''.join(shown)}"


def _tagged(document: Document, tag: Document) -> Iterator[tuple[str, str, Document]]:
    return (found for found in operations(document) if tag["name"] in found[2]["tags"])


def _operation(document: Document, path: str, method: str, operation: Document) -> str:
    parts = [
        f'<section id="{escape(operation["operationId"])}"><h3>{_method(method)} {_code(path)}</h3>',
        f"<p>{escape(operation['summary'])}.</p>",
        _prose(operation.get("description", "")),
    ]
    given = [*document["paths"].get(path, {}).get("parameters", []), *operation.get("parameters", [])]
    if parameters := [_resolved(document, one) for one in given]:
        rows = [
            [_code(one["name"]), escape(one["in"]) + _required(one), _type(document, one["schema"]),
             _prose(one.get("description") or _resolved(document, one["schema"]).get("description", ""))]
            for one in parameters
        ]  # fmt: skip
        parts += ["<h4>Parameters</h4>", _table(["name", "in", "type", "meaning"], rows)]
    if body := operation.get("requestBody"):
        parts += ["<h4>Request body</h4>", _prose(body.get("description", ""))]
        for media_type, content in body["content"].items():
            parts += [f"<p>{_code(media_type)}</p>", _members(document, content["schema"]), *_examples(content)]
    rows = [
        [_code(status), _prose(answer["description"]), _headers(document, answer), _content(document, answer)]
        for status, answer in sorted(operation["responses"].items())
    ]
    parts += ["<h4>Answers</h4>", _table(["status", "meaning", "headers", "body"], rows), "</section>"]
    return "".join(parts)


def _schema(document: Document, name: str) -> str:
    schema = document["components"]["schemas"][name]
    return f'<section id="schema-{escape(name)}"><h3>{escape(name)}</h3>{_members(document, schema)}</section>'


def _examples(content: Document) -> Iterator[str]:
    for example in content.get("examples", {}).values():
        yield f"<pre><code>{escape(json.dumps(example['value'], ensure_ascii=False))}</code></pre>"


def _headers(document: Document, answer: Document) -> str:
    items = [
        f"<li>{_code(name)}: {_inline(_resolved(document, header).get('description', ''))}</li>"
        for name, header in answer.get("headers", {}).items()
    ]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _content(document: Document, answer: Document) -> str:
    return "".join(
        f"<p>{_code(media_type)} {_type(document, content['schema'])}</p>"
        for media_type, content in answer.get("content", {}).items()
    )


# -- schemas ------------------------------------------------------------------------------------------------------


def _members(document: Document, schema: Document) -> str:
    """An object's members as a table; anything else in words."""
    text = _prose(schema.get("description", ""))
    if "properties" not in schema:
        return f"<p>{_type(document, schema)}</p>{text}"
    return text + _table(["member", "type", "meaning"], list(_rows(document, schema)))


def _rows(document: Document, schema: Document, prefix: str = "") -> Iterator[list[str]]:
    required = set(schema.get("required", ()))
    for name, member in schema["properties"].items():
        meaning = member.get("description") or _resolved(document, member).get("description", "")
        mark = "" if name in required else ' <span class="soft">optional</span>'
        yield [_code(prefix + name) + mark, _type(document, member), _prose(meaning)]
        if "properties" in member:
            yield from _rows(document, member, f"{prefix}{name}.")
    if isinstance(others := schema.get("additionalProperties"), dict):
        yield ['<span class="soft">any other</span>', _type(document, others), _prose(others.get("description", ""))]


def _type(document: Document, schema: Document) -> str:
    """A schema in few words."""
    match schema:
        case {"$ref": str(target)}:
            name = escape(target.rpartition("/")[2])
            text = f'<a href="#schema-{name}">{name}</a>'
        case {"allOf": [first, *_]}:
            text = _type(document, first)
        case {"anyOf": list(choices)}:
            text = " or ".join(_type(document, one) for one in choices)
        case {"const": value}:
            text = _code(json.dumps(value))
        case {"enum": list(values)}:
            text = ", ".join(_code(json.dumps(one)) for one in values)
        case {"type": "array", "items": items}:
            text = f"array of {_type(document, items)}"
        case _:
            kinds = schema.get("type", "any")
            text = escape(", ".join([" or ".join(kinds) if isinstance(kinds, list) else kinds, *_bounds(schema)]))
    return text


def _bounds(schema: Document) -> Iterator[str]:
    if "format" in schema:
        yield schema["format"]
    for name, word in (("minimum", "from"), ("maximum", "to"), ("maxLength", "at most"), ("default", "default")):
        if name in schema:
            yield f"{word} {schema[name]}{' characters' if name == 'maxLength' else ''}"


def _resolved(document: Document, node: Document) -> Document:
    while "$ref" in node:
        found: Any = document
        for name in node["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        node = found
    return node


# -- HTML ---------------------------------------------------------------------------------------------------------


def _method(method: str) -> str:
    return f'<span class="method {escape(method)}">{escape(method.upper())}</span>'


def _required(parameter: Document) -> str:
    return "" if parameter.get("required") else ', <span class="soft">optional</span>'


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _table(heads: Iterable[str], rows: Iterable[list[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _prose(text: str) -> str:
    blocks: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip()) if text.strip() else []:
        if block.startswith("* "):
            items = re.split(r"^\* ", block, flags=re.MULTILINE)[1:]
            blocks.append(f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>")
        else:
            blocks.append(f"<p>{_inline(block)}</p>")
    return "".join(blocks)


def _inline(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(" ".join(text.split())))
