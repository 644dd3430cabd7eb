"""What models.yaml says of limits: ``gates`` of a model, and ``providers`` that several models share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from queuecore.gates import Composite, Concurrency, Constant, Gate, Rate

_MINUTE_MS: Final = 60_000
PositiveInt = Annotated[int, Meta(ge=1)]


class ConstantGate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="constant"):
    """Always the same answer: ``wait`` closes a model without a pause, ``drop`` fails its jobs with gate_dropped."""

    verdict: Literal["admit", "wait", "drop"]
    wait_seconds: PositiveInt = 60
    reason: str = "the model takes no jobs"


class RateGate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="rate"):
    """At most ``limit`` runs begun, or tokens used, in any window of this length."""

    limit: PositiveInt
    window_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 60
    unit: Literal["requests", "tokens"] = "requests"


class ConcurrencyGate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="concurrency"):
    """At most ``limit`` runs at once."""

    limit: PositiveInt


class CompositeGate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="composite"):
    """All of ``gates``."""

    gates: Annotated[list[GateConfig], Meta(min_length=1)]


GateConfig = ConstantGate | RateGate | ConcurrencyGate | CompositeGate
GATE_TYPES: Final = ("composite", "concurrency", "constant", "rate")


class Provider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An upstream's limits; 0 is no limit."""

    requests_per_minute: Annotated[int, Meta(ge=0)] = 0
    tokens_per_minute: Annotated[int, Meta(ge=0)] = 0
    concurrent: Annotated[int, Meta(ge=0)] = 0


def gate_of(
    model: str, gates: Sequence[GateConfig], provider_name: str | None, provider: Provider, tokens_per_request: int
) -> Gate | None:
    """The one gate in front of a model: its own gates and its provider's; None when it has neither."""
    parts = [
        *_own(model, "gates", gates, tokens_per_request),
        *_shared(provider_name or "", provider, tokens_per_request),
    ]
    return Composite(tuple(parts)) if parts else None


def _own(model: str, path: str, gates: Sequence[GateConfig], estimate: int) -> Iterator[Gate]:
    for number, one in enumerate(gates):
        here = f"{path}.{number}"
        label, key = f"{here}:{one.__struct_config__.tag}", f"relay:{model}:gate:{here}"
        match one:
            case ConstantGate():
                yield Constant(label, one.verdict, 1000 * one.wait_seconds, one.reason)
            case RateGate(unit="tokens"):
                yield Rate(label, key, one.limit, 1000 * one.window_seconds, estimate, ":tokens")
            case RateGate():
                yield Rate(label, key, one.limit, 1000 * one.window_seconds)
            case ConcurrencyGate():
                yield Concurrency(label, f"{key}:running", one.limit)
            case CompositeGate():
                yield from _own(model, f"{here}.gates", one.gates, estimate)


def _shared(name: str, limits: Provider, estimate: int) -> Iterator[Gate]:
    key = f"ratelimit:{name}"
    if limits.concurrent:
        yield Concurrency(f"{name}:concurrent", f"{key}:running", limits.concurrent)
    if limits.requests_per_minute:
        yield Rate(f"{name}:requests", key, limits.requests_per_minute, _MINUTE_MS)
    if limits.tokens_per_minute:
        yield Rate(f"{name}:tokens", key, limits.tokens_per_minute, _MINUTE_MS, estimate, ":tokens")
