"""Settings: read from the environment once, at start, checked, and never changed.

A settings class is a frozen ``msgspec.Struct``; each field is one variable (prefix + upper-case name), its type carries
the bounds and the description (``Annotated[int, Meta(gt=0, description="…")]``), and ``__post_init__`` checks rules
between fields. No pydantic here: the relay reads its settings before its first claim (docs/adr/0003).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from queuecore.errors import ConfigurationError

Positive = Annotated[float, Meta(gt=0)]


class Secret:
    """Text that is never printed; ``reveal()`` gives it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every settings class."""

    prefix: ClassVar[str] = ""
    # Other variables under the prefix that some other class reads.
    also_known: ClassVar[frozenset[str]] = frozenset()
    # variable -> the variable it stands for, where the other one is not set
    aliases: ClassVar[Mapping[str, str]] = {}


class CommonSettings(Settings, frozen=True, kw_only=True):
    """Variables that every service shares."""

    redis_url: Annotated[Secret, Meta(description="`redis://` or `rediss://` (TLS); host, port and database.")] = (
        msgspec.field(default_factory=lambda: Secret("redis://127.0.0.1:6379/0"))
    )
    redis_username: Annotated[str, Meta(description="ACL user; wins over the URL's.")] = ""
    redis_password: Annotated[Secret, Meta(description="Any characters; wins over the URL's.")] = msgspec.field(
        default_factory=lambda: Secret("")
    )
    cache_redis_url: Annotated[
        Secret, Meta(description="Another Redis for the response cache, where an eviction policy is allowed.")
    ] = msgspec.field(default_factory=lambda: Secret(""))
    blobs_url: Annotated[str, Meta(description="`s3://bucket/prefix` or `file:///dir`.")] = ""
    s3_endpoint_url: Annotated[str, Meta(description="An S3 server other than AWS.")] = ""
    s3_addressing_style: Annotated[str, Meta(pattern="^(auto|path|virtual)$", description="auto, path or virtual.")] = (
        "auto"
    )
    s3_checksums: Annotated[
        str,
        Meta(
            pattern="^(when_required|when_supported)$",
            description="when_required suits every S3 server; when_supported adds CRC headers that some refuse.",
        ),
    ] = "when_required"
    encryption_keys: Annotated[
        Secret, Meta(description="`id:base64` of 32 bytes, one a line, first = current; unset = no encryption.")
    ] = msgspec.field(default_factory=lambda: Secret(""))
    encryption_keys_file: Annotated[str, Meta(description="The same, from a file.")] = ""
    models_file: Annotated[str, Meta(description="Path of models.yaml.")] = ""
    log_level: Annotated[
        str, Meta(pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="DEBUG, INFO, WARNING or ERROR.")
    ] = "INFO"
    log_format: Annotated[str, Meta(pattern="^(json|console)$", description="json or console.")] = "json"
    otel_exporter_otlp_endpoint: Annotated[str, Meta(description="Where traces go; unset = off.")] = ""
    result_ttl_seconds: Annotated[int, Meta(gt=0, description="How long a finished job stays readable.")] = 86_400
    deadletter_ttl_seconds: Annotated[int, Meta(gt=0, description="How long a dead letter can be redriven.")] = (
        2_592_000
    )
    tombstone_ttl_seconds: Annotated[
        int, Meta(gt=0, description="How long after that a job answers 410 with its cause.")
    ] = 604_800
    pending_max_age_seconds: Annotated[int, Meta(gt=0, description="A job that waited this long expires.")] = 604_800
    max_reap_attempts: Annotated[
        int, Meta(ge=0, description="Redeliveries after a death; one death more is a dead letter.")
    ] = 3
    claim_lease_ttl_seconds: Annotated[int, Meta(gt=0, description="Sorted set: lease of a claim.")] = 300
    claim_reclaim_interval_ms: Annotated[int, Meta(gt=0, description="Sorted set: pause between scans.")] = 15_000
    result_dedup_ttl_seconds: Annotated[int, Meta(gt=0, description="Sorted set: life of a duplicate marker.")] = 21_600

    aliases: ClassVar[Mapping[str, str]] = {
        "GATEWAY_RESULT_TTL_SECONDS": "RESULT_TTL_SECONDS",
        "GATEWAY_DEADLETTER_TTL_SECONDS": "DEADLETTER_TTL_SECONDS",
        "GATEWAY_TOMBSTONE_TTL_SECONDS": "TOMBSTONE_TTL_SECONDS",
        "GATEWAY_PENDING_MAX_AGE_SECONDS": "PENDING_MAX_AGE_SECONDS",
        "REAPER_MAX_REAP_ATTEMPTS": "MAX_REAP_ATTEMPTS",
    }

    def __post_init__(self) -> None:
        check_redis_url("REDIS_URL", self.redis_url.reveal())
        if self.cache_redis_url:
            check_redis_url("CACHE_REDIS_URL", self.cache_redis_url.reveal())
        if self.blobs_url and urlsplit(self.blobs_url).scheme not in {"s3", "file"}:
            raise ValueError("BLOBS_URL: s3://bucket/prefix or file:///dir")
        if self.encryption_keys and self.encryption_keys_file:
            raise ValueError("ENCRYPTION_KEYS and ENCRYPTION_KEYS_FILE: set one of them")


def check_redis_url(variable: str, url: str) -> None:
    """Refuse what is not a plain or TLS Redis URL, naming the variable; the URL itself may hold a password."""
    parts = urlsplit(url)
    if parts.scheme in {"redis+cluster", "redis+sentinel"}:
        raise ValueError(f"{variable}: {parts.scheme}:// is not supported yet; give one server, redis:// or rediss://")
    if parts.scheme == "unix":
        return
    if parts.scheme not in {"redis", "rediss"} or not parts.hostname:
        raise ValueError(f"{variable}: redis://host:port/db or rediss://host:port/db")
    try:
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{variable}: the port is not a number from 1 to 65535") from error


T = TypeVar("T", bound=Settings)


def read_settings(cls: type[T], environ: Mapping[str, str]) -> T:
    """One settings object from the environment; an empty variable counts as unset.

    Raises:
        ConfigurationError: names every variable that is unknown, missing or out of bounds, and the rule.
    """
    variables = {cls.prefix + name.upper(): name for name in cls.__struct_fields__}
    hints = get_type_hints(cls, include_extras=True)
    values: dict[str, Any] = {}
    problems: list[str] = []
    given = {name: text for name, text in environ.items() if text != ""}
    for alias, name in cls.aliases.items():
        if alias in given:
            _ = given.setdefault(name, given[alias])
    if cls.prefix:
        known = {*variables, *cls.also_known, *CommonSettings.aliases}
        problems += [
            f"{name}: unknown setting{_hint(name, known)}"
            for name in sorted(environ)
            if name.startswith(cls.prefix) and name not in known
        ]
    required = {field.encode_name for field in msgspec.structs.fields(cls) if field.required}
    for variable, name in variables.items():
        if variable in given:
            try:
                values[name] = _convert(given[variable], hints[name])
            except (msgspec.ValidationError, ValueError) as error:
                problems.append(f"{variable}: {error}")
        elif name in required:
            problems.append(f"{variable}: required")
    if not problems:
        try:
            return cls(**values)
        except ValueError as error:
            problems.append(str(error))
    raise ConfigurationError("; ".join(problems))


def _convert(text: str, hint: object) -> object:
    kind = getattr(hint, "__origin__", hint)  # of Annotated[kind, Meta(…)]
    if kind is Secret:
        return Secret(text)
    if kind is bool:
        text = text.lower()
    return msgspec.convert(text, cast("type[Any]", hint), strict=False)


def _hint(name: str, known: set[str]) -> str:
    import difflib  # noqa: PLC0415  only on the way to an error: the relay's cold start does not pay for it

    near = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {near[0]}?)" if near else ""


def describe(cls: type[Settings]) -> list[tuple[str, str, str]]:
    """(variable, default, description) of each field, for docs/configuration.md."""
    hints = get_type_hints(cls, include_extras=True)
    rows: list[tuple[str, str, str]] = []
    for field in msgspec.structs.fields(cls):
        metas = [meta for meta in getattr(hints[field.name], "__metadata__", ()) if isinstance(meta, Meta)]
        text = next((meta.description for meta in metas if meta.description), "")
        if field.required:
            default = "required"
        elif field.default_factory is not msgspec.NODEFAULT:
            made: object = field.default_factory()
            default = made.reveal() if isinstance(made, Secret) else str(made)
        else:
            default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        rows.append((cls.prefix + field.name.upper(), default or "unset", text))
    return rows
