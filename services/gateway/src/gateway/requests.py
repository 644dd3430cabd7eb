"""A submission's options: the same names in a form, a JSON body or a query string, checked once, here.

``Options`` collects fields in the order they come (the query string first, then the body's); ``Options.resolve`` makes
the ``Submission``. Known names may be given once; an empty one counts as not given. Every other name becomes a param,
in order, repeated or not; ``params`` itself is kept byte for byte when nothing stands beside it (``gateway.members``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from gateway import members
from gateway.problems import Refusal
from gateway.webhooks import guard
from queuecore.broker import LONGEST_DEDUP_KEY, Dedup
from queuecore.clock import parse_rfc3339
from queuecore.config import Config, ModelConfig, Operation
from queuecore.job import Step
from queuecore.names import TOKEN
from queuecore.scoring import BONUSES

KNOWN: Final = (
    "model", "operation", "callback_url", "priority", "content_class", "not_before", "deadline", "ordering_key",
    "dedup_key", "force", "params",
)  # fmt: skip
_FLAGS: Final = frozenset({"priority", "force"})  # true and false are words for these in JSON
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
MOST_QUERY_FIELDS: Final = 100
LATEST_MS: Final = 253_402_300_799_999  # the end of the year 9999
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
# What each transport understands, the usual one first; true and false stand for high and normal where they are words.
_PRIORITIES: Final[Mapping[str, Sequence[str]]] = {
    "list": ("false", "true"),
    "sortedset": ("normal", "high", "critical"),
    "stage": ("normal", "high", "critical"),
    "stream": ("normal", "high"),
}


class Submission(NamedTuple):
    """What a client wants done; everything is checked."""

    service_type: str
    model: str
    config: ModelConfig
    operation_name: str
    operation: Operation
    priority: str
    not_before: int | None
    deadline: int | None
    ordering_key: str
    callback_url: str
    params: str
    pipeline: str = ""  # then ``model`` is its first stage
    steps: tuple[Step, ...] = ()
    content_class: str = ""
    dedup: Dedup | None = None


class Options:
    """The fields so far. ``service_type`` or ``pipeline`` is the route's, and is checked here."""

    def __init__(
        self,
        config: Config,
        service_type: str,
        *,
        priority_field: bool,
        allow: guard.Allow,
        pipeline: str | None = None,
    ) -> None:
        self._pipeline = pipeline or ""
        if pipeline is not None:
            first = _first_stage(config, pipeline)
            service_type = config.models[first].service_type
            self._models = {first: config.models[first]}
        else:
            self._models = {name: model for name, model in config.models.items() if model.service_type == service_type}
        if not self._models:
            raise Refusal(
                404,
                "service_type_not_found",
                f"no model serves {service_type!r}; service types: {', '.join(config.service_types)}",
            )
        self._config = config
        self._allow = allow
        self._service_type = service_type
        self._priority_field = priority_field
        self._known: dict[str, str] = {}
        self._members: list[str] = []
        self._only_params = True

    def add_query(self, query: bytes) -> None:
        """The query string's fields.

        Raises:
            Refusal: it cannot be read.
        """
        if not query:
            return
        try:
            fields = parse_qsl(
                query.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_QUERY_FIELDS, errors="strict"
            )
        except ValueError as error:
            raise _invalid(f"query string: at most {MOST_QUERY_FIELDS} fields, percent-encoded UTF-8") from error
        for name, text in fields:
            self.add_text(name, text)

    def add_text(self, name: str, text: str) -> None:
        """A text field.

        Raises:
            Refusal: a known name given twice, or ``params`` that is not a JSON object.
        """
        if name == "params":
            if text:
                self._add_params(text.encode())
        elif name in KNOWN:
            if text:
                self._add_known(name, text)
        else:
            self._add_member(name, msgspec.Raw(msgspec.json.encode(text)))

    def add_json(self, name: str, value: msgspec.Raw) -> None:
        """A member of a JSON body, other than ``input``.

        Raises:
            Refusal: as above, or a known name whose value is not text.
        """
        raw = bytes(value)
        if name == "params":
            if raw != b"null":
                self._add_params(raw)
        elif name in KNOWN:
            if name in _FLAGS and raw in {b"true", b"false"}:
                self._add_known(name, raw.decode())
            elif raw != b"null":
                try:
                    text = msgspec.json.decode(raw, type=str)
                except msgspec.MsgspecError as error:
                    raise _invalid(f"{name}: text is expected") from error
                self.add_text(name, text)
        else:
            self._add_member(name, value)

    def _add_known(self, name: str, text: str) -> None:
        if name in self._known:
            raise _invalid(f"{name}: given twice")
        self._known[name] = text

    def _add_params(self, text: bytes) -> None:
        try:
            found = members.object_members(text)
        except ValueError as error:
            raise Refusal(422, "invalid_params", f"params: a JSON object is expected: {error}") from error
        self._add_known("params", text.decode())
        if found:
            self._members.append(members.inner(text.decode()))

    def _add_member(self, name: str, value: msgspec.Raw) -> None:
        self._only_params = False
        self._members.append(members.member(name, value))

    # -- the model, as soon as it can be known ------------------------------------------------------------------

    def candidates(self) -> Sequence[ModelConfig]:
        """Models that the submission may still mean: one once it is named or the only one.

        Raises:
            Refusal: the named one does not serve this service type.
        """
        if "model" in self._known:
            return [self._models[self._choose()]]
        return list(self._models.values())

    def only_model(self) -> str | None:
        """The model's name when no later field can change it."""
        if "model" in self._known or len(self._models) == 1:
            return self._choose()
        return None

    def _choose(self) -> str:
        if self._pipeline:
            for name in ("model", "operation"):
                if name in self._known:
                    raise _invalid(f"{name}: a pipeline's stages and what they do are fixed by models.yaml")
            return next(iter(self._models))
        try:
            return self._config.choose(self._service_type, self._known.get("model"))
        except KeyError as error:
            code = "model_not_found" if "model" in self._known else "model_missing"
            raise Refusal(400, code, f"model: {error.args[0]}") from error

    # -- everything ---------------------------------------------------------------------------------------------

    def resolve(self, *, priority_header: bool) -> Submission:
        """The checked submission.

        Raises:
            Refusal: naming the field and the rule.
        """
        name = self._choose()
        model = self._models[name]
        operation_name = self._operation(model)
        not_before, deadline = self._time("not_before"), self._time("deadline")
        if not_before is not None and deadline is not None and deadline <= not_before:
            raise _invalid("deadline: it must be later than not_before")
        ordering_key = self._known.get("ordering_key", "")
        if ordering_key and not TOKEN.match(ordering_key):
            raise _invalid("ordering_key: 1 to 200 printable ASCII characters without spaces")
        callback_url = self._known.get("callback_url", "")
        if callback_url:
            try:
                _ = guard.check(callback_url, self._allow)
            except guard.Refused as error:
                raise _invalid(f"callback_url: {error}") from error
        return Submission(
            service_type=self._service_type,
            model=name,
            config=model,
            operation_name=operation_name,
            operation=model.operation(operation_name),
            priority=_PRIORITIES[model.transport][1] if priority_header else self._priority(model),
            not_before=not_before,
            deadline=deadline,
            ordering_key=ordering_key,
            callback_url=callback_url,
            params=self._known.get("params", "") if self._only_params else members.object_of(self._members),
            pipeline=self._pipeline,
            steps=self._config.steps(self._pipeline) if self._pipeline else (),
            content_class=self._content_class(model),
            dedup=self._dedup(model),
        )

    def _operation(self, model: ModelConfig) -> str:
        name = self._known.get("operation")
        names = list(model.operations)
        if name is None:
            return names[0]  # the file's order is the operator's choice
        if name not in names:
            raise _invalid(f"operation: unknown: {name!r}; this model has: {', '.join(names)}")
        return name

    def _priority(self, model: ModelConfig) -> str:
        words = _PRIORITIES[model.transport]
        text = self._known.get("priority", words[0])
        priority = {"false": words[0], "true": words[1]}.get(text, text)
        if priority not in words:
            also = "" if model.transport == "list" else f" (true is {words[1]})"
            raise _invalid(f"priority: {' or '.join(words)}{also}")
        # A list's priority is last-in-first-out ahead of everybody: for whom the operator means it.
        if model.transport == "list" and priority != words[0] and not self._priority_field:
            raise Refusal(
                400, "priority_not_allowed", "priority: this gateway has no priority (GATEWAY_PRIORITY_HEADER is unset)"
            )
        return priority

    def _content_class(self, model: ModelConfig) -> str:
        text = self._known.get("content_class", "")
        if text and (model.transport, model.order) != ("sortedset", "priority"):
            raise _invalid("content_class: only a queue that is ordered by priority knows it; this model's is not")
        if text and text not in BONUSES:
            raise _invalid(f"content_class: {' or '.join(BONUSES)}, or none")
        return text

    def _dedup(self, model: ModelConfig) -> Dedup | None:
        key, force = self._known.get("dedup_key", ""), self._known.get("force", "false")
        if force not in {"true", "false"}:
            raise _invalid("force: true or false")
        if not key:
            if force == "true":
                raise _invalid("force: it takes an item again, so it needs a dedup_key")
            return None
        if len(key) > LONGEST_DEDUP_KEY or _CONTROL.search(key):
            raise _invalid(f"dedup_key: at most {LONGEST_DEDUP_KEY} characters, no control characters")
        return Dedup(key, 1000 * model.dedup_seconds, force == "true")

    def _time(self, name: str) -> int | None:
        text = self._known.get(name)
        if text is None:
            return None
        try:
            moment = parse_rfc3339(text)
        except (ValueError, OverflowError) as error:
            raise _invalid(f"{name}: {error}") from error
        if not 0 <= moment <= LATEST_MS:
            raise _invalid(f"{name}: out of range")
        return moment


def _first_stage(config: Config, pipeline: str) -> str:
    if pipeline not in config.pipelines:
        known = ", ".join(config.pipelines) or "none"
        raise Refusal(404, "pipeline_not_found", f"there is no pipeline {pipeline!r}; pipelines: {known}")
    return config.pipelines[pipeline].stages[0]


def traceparent(value: str | None) -> str:
    """The W3C header if it is valid, else "": a broken trace context is ignored, as its specification says."""
    return value if value and _TRACEPARENT.match(value) else ""


def _invalid(detail: str) -> Refusal:
    return Refusal(400, "invalid_request", detail)
