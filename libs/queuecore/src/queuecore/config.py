"""models.yaml: which models there are, how each is queued, limited and called.

Errors name the file's path to the value and the rule: ``models.whisper.lease_seconds: Expected `int` >= 1``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, cast

import msgspec
import yaml
from msgspec import Meta

from queuecore.broker import Order, QueueLimits, Retention
from queuecore.errors import ConfigurationError
from queuecore.gates import Gate
from queuecore.job import Step
from queuecore.names import SERVICE_TYPE, check_model_name
from queuecore.providers import GATE_TYPES, GateConfig, Provider, gate_of
from queuecore.settings import CommonSettings

Transport = Literal["list", "sortedset", "stream", "stage"]  # stage: what a pipeline names, and nothing else
T = TypeVar("T", bound=msgspec.Struct)
_SORTED_SET_KEYS: Final = (
    "claim_lease_ttl_seconds", "claim_reclaim_interval_ms", "result_dedup_ttl_seconds", "result_list", "fair_share",
)  # fmt: skip
# First words of key names behind `relay:<model>:` and `queue:<model>:`: a second model may not be named into them.
_KEY_WORDS: Final = frozenset({
    "pending", "processing", "lease", "first-seen", "delayed", "paused", "ordered", "ordering", "deadletter", "outbox",
    "jobs", "tenant", "waiting", "missing", "deadlines", "state", "cancel", "stream", "completed", "changed",
    "claimed", "claim-owners", "claims-idx", "bell", "tenants", "gate",
})  # fmt: skip
_PROVIDER_NAME: Final = re.compile(r"[^\s:\x00-\x1f\x7f]{1,100}\Z")
_PIPELINE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
PositiveInt = Annotated[int, Meta(ge=1)]
UrlPath = Annotated[str, Meta(pattern=r"^/[\x21-\x7e]*$")]
MediaRange = Annotated[str, Meta(pattern=r"^([a-z0-9!#$&^_.+-]+/([a-z0-9!#$&^_.+-]+|\*)|\*/\*)$")]


class Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the inference server is asked: multipart (fields and file), json (params with the input) or raw body."""

    url: UrlPath
    request: Literal["multipart", "json", "raw"] = "multipart"


class Retries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens after 429, 5xx, a refused connection or a timeout. ``max_attempts`` 1 is no retry."""

    max_attempts: PositiveInt = 1
    backoff_seconds: Annotated[float, Meta(gt=0)] = 2
    max_backoff_seconds: Annotated[float, Meta(gt=0)] = 60


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model = one queue."""

    service_type: str
    operations: dict[str, UrlPath | Operation]
    default: bool = False
    transport: Transport = "list"
    order: Literal["deadline", "priority"] | None = None
    lease_seconds: PositiveInt | None = None
    execution_timeout_seconds: Annotated[float, Meta(gt=0)] | None = None  # None: RELAY_EXECUTION_TIMEOUT_SECONDS
    accepted_types: list[MediaRange] = []
    max_upload_bytes: PositiveInt | None = None
    max_pending: PositiveInt = 10_000
    max_pending_per_tenant: PositiveInt | None = None
    dedup_seconds: PositiveInt = 604_800
    retries: Retries = Retries()
    provider: str | None = None
    gates: list[GateConfig] = []
    tokens_per_request: PositiveInt = 1_000  # what a job without max_tokens is taken to use
    cache_seconds: Annotated[int, Meta(ge=0)] = 0
    claim_lease_ttl_seconds: PositiveInt | None = None
    claim_reclaim_interval_ms: PositiveInt | None = None
    result_dedup_ttl_seconds: PositiveInt | None = None
    batch_size: PositiveInt = 10
    result_list: bool = False
    fair_share: bool = False

    def operation(self, name: str) -> Operation:
        """The named operation; ``KeyError`` when the model has none of that name."""
        found = self.operations[name]
        return Operation(found) if isinstance(found, str) else found

    @property
    def lease_ms(self) -> int:
        """Lease of a claim on this model's transport, before CLAIM_LEASE_TTL_SECONDS."""
        if self.transport == "sortedset":
            return 1000 * (self.claim_lease_ttl_seconds or self.lease_seconds or 300)
        return 1000 * (self.lease_seconds or (90 if self.transport == "stage" else 60))


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stages in order; each is a model, and what one answers is the next one's input."""

    stages: Annotated[list[str], Meta(min_length=1, max_length=100)]


class Config(msgspec.Struct, frozen=True):
    """The whole file."""

    models: dict[str, ModelConfig]
    providers: dict[str, Provider] = {}
    pipelines: dict[str, Pipeline] = {}

    def choose(self, service_type: str, name: str | None) -> str:
        """The model a submission means: the named one, the only one, or the default of its service type.

        Raises:
            KeyError: unknown service type or model, or no choice possible; the message lists the models.
        """
        mine = {key: model for key, model in self.models.items() if model.service_type == service_type}
        known = ", ".join(mine)
        if not mine:
            raise KeyError(f"no model serves {service_type!r}; service types: {', '.join(self.service_types)}")
        if name is not None:
            if name not in mine:
                raise KeyError(f"model {name!r} does not serve {service_type!r}; its models: {known}")
            return name
        if len(mine) == 1:
            return next(iter(mine))
        for key, model in mine.items():
            if model.default:
                return key
        raise KeyError(f"name a model; {service_type!r} has: {known}")

    def gate(self, name: str) -> Gate | None:
        """What stands before the claims of this model: its gates and its provider's limits; None: nothing."""
        model = self.models[name]
        provider = self.providers.get(model.provider or "", Provider())
        return gate_of(name, model.gates, model.provider, provider, model.tokens_per_request)

    def steps(self, pipeline: str) -> tuple[Step, ...]:
        """What a run of the pipeline does: each stage's first operation."""
        found: list[Step] = []
        for stage in self.pipelines[pipeline].stages:
            name = next(iter(self.models[stage].operations))
            operation = self.models[stage].operation(name)
            found.append(Step(stage, name, operation.url, operation.request))
        return tuple(found)

    @property
    def service_types(self) -> list[str]:
        """Each service type once, in the file's order."""
        return list(dict.fromkeys(model.service_type for model in self.models.values()))


_ORDERS: Final[Mapping[str, Order]] = {"list": "arrival", "stream": "lanes", "stage": "stage"}
STAGE_RECLAIM_MS: Final = 60_000  # seed 004: how often a stage's leases are looked at
STAGE_ATTEMPTS: Final = 3


def queue_limits(model: ModelConfig, common: CommonSettings) -> QueueLimits:
    """What the scripts of this model's queue need to know.

    Raises:
        ConfigurationError: a sorted set's duplicate marker would not outlive the longest redelivery chain.
    """
    lease_ms, reclaim_ms = model.lease_ms, 0
    dedup_seconds = model.result_dedup_ttl_seconds or common.result_dedup_ttl_seconds
    if model.transport == "sortedset":
        if model.lease_seconds is None and model.claim_lease_ttl_seconds is None:
            lease_ms = 1000 * common.claim_lease_ttl_seconds
        reclaim_ms = model.claim_reclaim_interval_ms or common.claim_reclaim_interval_ms
        chain_ms = (common.max_reap_attempts + 1) * (lease_ms + reclaim_ms)
        if 1000 * dedup_seconds <= chain_ms:
            raise ConfigurationError(
                f"result_dedup_ttl_seconds: {dedup_seconds} does not outlive the longest redelivery chain, "
                f"(MAX_REAP_ATTEMPTS + 1) * (lease + reclaim interval) = {chain_ms / 1000:g} s"
            )
    elif model.transport == "stage":
        reclaim_ms = STAGE_RECLAIM_MS
    return QueueLimits(
        lease_ms=lease_ms,
        order=_ORDERS.get(model.transport) or model.order or "deadline",
        batch_size=model.batch_size,
        reclaim_interval_ms=reclaim_ms,
        result_dedup_ms=1000 * dedup_seconds,
        result_list=model.result_list,
        fair_share=model.fair_share,
        max_pending=model.max_pending,
        max_pending_per_tenant=model.max_pending_per_tenant,
        max_reap_attempts=common.max_reap_attempts,
        pending_max_age_ms=common.pending_max_age_seconds * 1000,
        retention=Retention(
            result_ms=common.result_ttl_seconds * 1000,
            deadletter_ms=common.deadletter_ttl_seconds * 1000,
            tombstone_ms=common.tombstone_ttl_seconds * 1000,
        ),
    )


def load_config(path: str) -> Config:
    """Read and check models.yaml.

    Raises:
        ConfigurationError: one line a problem.
    """
    if not path:
        raise ConfigurationError("MODELS_FILE: required (the path of models.yaml)")
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"MODELS_FILE {path}: {error}") from error
    return parse_config(text)


def parse_config(text: str) -> Config:
    """The same from text."""
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader that also refuses repeated keys
    except yaml.YAMLError as error:
        raise ConfigurationError(f"models.yaml: {error}") from error
    problems: list[str] = []
    sections = _mapping(data, "models.yaml", problems)
    problems += [f"{name}: unknown section" for name in sections if name not in {"models", "providers", "pipelines"}]
    providers = _section(sections, "providers", Provider, problems)
    pipelines = _section(sections, "pipelines", Pipeline, problems)
    _make_stages(sections.get("models"), {one for pipeline in pipelines.values() for one in pipeline.stages}, problems)
    models = _section(sections, "models", ModelConfig, problems)
    if not models and not problems:
        problems.append("models: at least one model is needed")
    problems += _rules(models, providers, pipelines)
    if problems:
        raise ConfigurationError("; ".join(problems))
    return Config(models, providers, pipelines)


def _section(sections: Mapping[str, Any], name: str, cls: type[T], problems: list[str]) -> dict[str, T]:
    found: dict[str, T] = {}
    for key, value in _mapping(sections.get(name) or {}, name, problems).items():
        try:
            found[key] = msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            message, _, where = str(error).partition(" - at `$")
            if where.endswith(".type`"):
                message = f"{message}; gate types are {', '.join(GATE_TYPES)}"
            problems.append(f"{name}.{key}{where.rstrip('`')}: {message}")
    return found


def _make_stages(models: object, stages: Set[str], problems: list[str]) -> None:
    """A model that a pipeline names has the layout of seed 004, which nobody chooses, and three attempts."""
    known = cast("dict[object, object]", models if isinstance(models, dict) else {})
    for name, model in known.items():
        if not isinstance(model, dict):
            continue
        fields = known[name] = dict(cast("dict[str, object]", model))  # two models may be one YAML anchor
        if name not in stages:
            if fields.get("transport") == "stage":
                problems.append(f"models.{name}.transport: 'stage' is that of models which a pipeline names")
            continue
        if "transport" in fields:
            problems.append(f"models.{name}.transport: a pipeline names this model, and stages have one of their own")
        fields["transport"] = "stage"
        retries = fields.get("retries", {})
        if isinstance(retries, dict):
            fields["retries"] = {"max_attempts": STAGE_ATTEMPTS} | cast("dict[str, object]", retries)


def _mapping(value: object, where: str, problems: list[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        problems.append(f"{where}: a mapping is expected")
        return {}
    good: dict[str, Any] = {}
    for key, item in cast("dict[object, Any]", value).items():
        if isinstance(key, str):
            good[key] = item
        else:
            problems.append(f"{where}: the key {key!r} is not text; put it in quotes")
    return good


def _rules(
    models: Mapping[str, ModelConfig], providers: Mapping[str, Provider], pipelines: Mapping[str, Pipeline]
) -> list[str]:
    problems: list[str] = []
    defaults: dict[str, str] = {}
    for name, model in models.items():
        where = f"models.{name}"
        try:
            _ = check_model_name(name)
        except ValueError as error:
            problems.append(f"models: {error}")
        if not SERVICE_TYPE.match(model.service_type):
            problems.append(f"{where}.service_type: lower-case letters, digits, '-' and '_'")
        if not model.operations:
            problems.append(f"{where}.operations: at least one operation is needed")
        if model.order is not None and model.transport != "sortedset":
            problems.append(f"{where}.order: only transport sortedset has an order")
        if model.transport != "sortedset":
            problems += [
                f"{where}.{key}: only transport sortedset has it" for key in _SORTED_SET_KEYS if getattr(model, key)
            ]
        if model.lease_seconds is not None and model.claim_lease_ttl_seconds is not None:
            problems.append(f"{where}: lease_seconds and claim_lease_ttl_seconds mean the same; set one")
        if model.provider is not None and model.provider not in providers:
            problems.append(f"{where}.provider: {model.provider!r} is not under providers")
        if model.default:
            if model.service_type in defaults:
                problems.append(f"{where}.default: {defaults[model.service_type]} is the default already")
            defaults[model.service_type] = name
    for first in models:
        problems += [
            f"models: {second!r} would share Redis keys with {first!r}: rename one"
            for second in models
            if second.startswith(f"{first}:") and second[len(first) + 1 :].partition(":")[0] in _KEY_WORDS
        ]
    problems += [
        f"providers: {name!r} must be 1 to 100 characters without blanks and colons: it stands in Redis keys"
        for name in providers
        if not _PROVIDER_NAME.match(name)
    ]
    return problems + _pipeline_rules(models, pipelines)


def _pipeline_rules(models: Mapping[str, ModelConfig], pipelines: Mapping[str, Pipeline]) -> list[str]:
    problems: list[str] = []
    for name, pipeline in pipelines.items():
        where = f"pipelines.{name}"
        if not _PIPELINE_NAME.match(name):
            problems.append(f"{where}: a name has 1 to 64 letters, digits, '.', '-' and '_', first a letter or digit")
        for at, stage in enumerate(pipeline.stages):
            if stage not in models:
                problems.append(f"{where}.stages: {stage!r} is not under models")
            elif models[stage].cache_seconds:
                problems.append(f"models.{stage}.cache_seconds: results of pipelines are not used again")
            if stage in pipeline.stages[:at]:
                problems.append(f"{where}.stages: {stage!r} stands twice; a run passes each stage once")
    return problems


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as ever, but a key given twice is an error and not a silent override."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # what stands beside it may override what it brings
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
