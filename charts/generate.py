"""Make the chart's values.schema.json and the values table of its README from the comments of values.yaml.

    charts/generate.py            writes both files
    charts/generate.py --verify   writes nothing; exit 1 and a diff where a file is not what it would be

A key's comment is its description. What follows ``@schema`` (YAML flow) adds JSON Schema to what the default's type
says. A mapping without such a line is a group: its keys are all documented, and no others are allowed. What a model,
provider or pipeline may hold comes from ``queuecore.config``, so that the chart accepts what the services accept.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec
import yaml

from queuecore.config import ModelConfig, Pipeline, Provider

CHART: Final = Path(__file__).parent / "relayq"
BEGIN: Final = "<!-- values: made by charts/generate.py -->"
END: Final = "<!-- end of values -->"
Schema = dict[str, Any]


class Value(NamedTuple):
    """One key of values.yaml: its path, default, description, its part of the schema, and its keys if it is a group."""

    path: str
    default: object
    description: str
    extra: Schema | None
    children: tuple[Value, ...]

    @property
    def name(self) -> str:
        """The key itself."""
        return self.path.rpartition(".")[2]


def read_values(text: str) -> list[Value]:
    """The documented tree of values.yaml.

    Raises:
        SystemExit: names a key without a comment.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise SystemExit("values.yaml: a mapping is expected")
    return _read_mapping(root, cast("dict[str, Any]", yaml.safe_load(text)), text.splitlines(), "")


def _read_mapping(node: yaml.MappingNode, defaults: dict[str, Any], lines: list[str], prefix: str) -> list[Value]:
    values: list[Value] = []
    for key_node, value_node in node.value:
        name = cast("str", key_node.value)
        path = f"{prefix}{name}"
        description, extra = _comment_above(lines, key_node.start_mark.line)
        default = defaults[name]
        is_group = isinstance(value_node, yaml.MappingNode) and bool(default) and extra is None
        if not is_group and not description:
            raise SystemExit(f"values.yaml: {path} has no comment")
        children = _read_mapping(value_node, default, lines, f"{path}.") if is_group else []
        values.append(Value(path, default, description, extra, tuple(children)))
    return values


def _comment_above(lines: list[str], line: int) -> tuple[str, Schema | None]:
    block: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        block.insert(0, lines[line].lstrip().removeprefix("#").strip())
    description, _, extra = "\n".join(block).partition("@schema")
    return " ".join(description.split()), yaml.safe_load(extra) if extra else None


def make_schema(values: list[Value]) -> Schema:
    """JSON Schema of values.yaml; Helm checks every install, upgrade, lint and template with it."""
    schema: Schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",  # the newest that every Helm 3 knows
        "title": "Values of the relayq chart",
        **_group(values),
    }
    schema["properties"]["global"] = {"type": "object", "description": "Helm's own; relayq reads nothing in it."}
    by_path = {value.path: value for value in _walk(values)}
    _, parts = msgspec.json.schema_components([ModelConfig, Provider, Pipeline], ref_template="#/$defs/{name}")
    definitions = {name: _without_titles(part) for name, part in cast("dict[str, Schema]", parts).items()}
    model = definitions.pop("ModelConfig")
    model["properties"]["scaling"] = _override(_group(by_path["modelDefaults.scaling"].children))
    model["properties"]["inference"] = _override(_group(by_path["modelDefaults.inference"].children))
    model["type"] = ["object", "null"]  # null removes a model that an earlier values file named
    credentials = _override(_group(by_path["redis.auth"].children))
    schema["$defs"] = dict(sorted({**definitions, "Model": model, "Credentials": credentials}.items()))
    return schema


def _group(values: list[Value] | tuple[Value, ...]) -> Schema:
    properties = {value.name: _property(value) for value in values}
    required = [name for name, schema in properties.items() if "null" not in schema.get("type", "")]
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


def _property(value: Value) -> Schema:
    if value.children:
        schema = _group(value.children)
        return {"description": value.description, **schema} if value.description else schema
    kinds: dict[type[object], str] = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    kind = kinds.get(type(value.default))
    if kind is None and "type" not in (value.extra or {}):
        raise SystemExit(f"values.yaml: {value.path}: the default says no type; give one with @schema")
    return {"description": value.description, "type": kind, **(value.extra or {})}


def _override(group: Schema) -> Schema:
    """The same keys, where each may be left out."""
    return {key: value for key, value in group.items() if key != "required"}


def _without_titles(part: Schema) -> Schema:
    return {key: value for key, value in part.items() if key != "title"}


def _walk(values: list[Value] | tuple[Value, ...]) -> list[Value]:
    found: list[Value] = []
    for value in values:
        found += [value, *_walk(value.children)]
    return found


def make_table(values: list[Value]) -> str:
    """The values as Markdown, a table a top-level group."""
    lines: list[str] = []
    scalars = [value for value in values if not value.children]
    for title, rows in [("Everything", scalars), *((f"`{v.name}`", _walk(v.children)) for v in values if v.children)]:
        lines += ["", f"### {title}", "", "| value | default | meaning |", "|---|---|---|"]
        for row in rows:
            if row.children:
                continue
            default = json.dumps(row.default, ensure_ascii=False).replace("|", "\\|")
            lines.append(f"| `{row.path}` | `{default}` | {row.description.replace('|', chr(92) + '|')} |")
    return "\n".join(lines[1:])


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    _ = parser.add_argument("--verify", action="store_true", help="compare only")
    verify = cast("bool", parser.parse_args().verify)
    values = read_values((CHART / "values.yaml").read_text("utf-8"))
    readme = (CHART / "README.md").read_text("utf-8")
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"README.md: the lines {BEGIN!r} and {END!r} are missing")
    wanted = {
        CHART / "values.schema.json": json.dumps(make_schema(values), indent=1, ensure_ascii=False) + "\n",
        CHART / "README.md": f"{head}{BEGIN}\n\n{make_table(values)}\n\n{END}{tail}",
    }
    stale = 0
    for path, text in wanted.items():
        found = path.read_text("utf-8") if path.exists() else ""
        if found == text:
            continue
        if not verify:
            _ = path.write_text(text, "utf-8")
            continue
        stale += 1
        sys.stderr.write(f"{path.name} is not what charts/generate.py makes of values.yaml:\n")
        diff = difflib.unified_diff(found.splitlines(keepends=True), text.splitlines(keepends=True), "is", "should be")
        sys.stderr.writelines(diff)

    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
