"""A record's ``params`` as form or query fields.

They are "" or one object; a name that the client gave several times stands in it several times.
"""

from __future__ import annotations

import json

from queuecore.jsontext import members, parts


def form_fields(text: str) -> list[tuple[str, str]]:
    """Params as form or query fields: text as it is, a list as one field an item, null left out, others as JSON.

    Raises:
        ValueError: ``text`` is not a JSON object.
    """
    fields: list[tuple[str, str]] = []
    for name, value in members(text):
        for raw in [item for _, item in parts(value, "[]")] if value.startswith("[") else [value]:
            if raw.startswith('"'):
                fields.append((name, json.loads(raw)))
            elif raw != "null":
                fields.append((name, raw))
    return fields
