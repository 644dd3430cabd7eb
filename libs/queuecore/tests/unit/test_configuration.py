"""models.yaml and the environment: what is wrong is named, with its rule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import pytest
from msgspec import Meta

from queuecore.config import ModelConfig, load_config, parse_config, queue_limits
from queuecore.errors import ConfigurationError
from queuecore.settings import CommonSettings, Secret, Settings, describe, read_settings
from queuecore.testing.requirement import requirement

GOOD = """
models:
  whisper-large-v3:
    service_type: transcription
    operations: {transcribe: {url: /v1/audio/transcriptions, request: multipart}, translate: /v1/audio/translations}
    default: true
    lease_seconds: 30
  small:
    service_type: transcription
    operations: {transcribe: /v1/audio/transcriptions}
  echo: {service_type: echo, operations: {echo: {url: /echo, request: raw}}}
"""


def test_a_good_file_is_read() -> None:
    config = parse_config(GOOD)
    model = config.models["whisper-large-v3"]
    assert model.operation("translate").url == "/v1/audio/translations"
    assert model.operation("translate").request == "multipart"
    assert model.lease_ms == 30_000
    assert config.models["echo"].lease_ms == 60_000
    assert config.service_types == ["transcription", "echo"]


def test_the_model_is_the_named_one_the_only_one_or_the_default() -> None:
    config = parse_config(GOOD)
    assert config.choose("transcription", "small") == "small"
    assert config.choose("echo", None) == "echo"
    assert config.choose("transcription", None) == "whisper-large-v3"
    with pytest.raises(KeyError, match="name a model; 'transcription' has: whisper-large-v3, small"):
        _ = parse_config(GOOD.replace("default: true", "default: false")).choose("transcription", None)
    with pytest.raises(KeyError, match="its models: echo"):
        _ = config.choose("echo", "small")
    with pytest.raises(KeyError, match="no model serves 'x'"):
        _ = config.choose("x", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("lease_seconds: 30", "lease_seconds: 0"), r"models.whisper-large-v3.lease_seconds: Expected `int` >= 1"),
        (("lease_seconds: 30", "lease_secs: 30"), "models.whisper-large-v3: Object contains unknown field `lease_secs`"),
        (("url: /echo", "url: echo"), "models.echo.operations"),
        (("request: raw", "request: row"), "Invalid enum value 'row'"),
        (("  echo:", "  1.5:"), "the key 1.5 is not text; put it in quotes"),
        (("  echo:", "  small:"), "the key 'small' stands twice"),
        (("  echo:", "  a/../b:"), "no empty, '.' or '..' part"),
        (("service_type: echo", "service_type: Echo Service"), "models.echo.service_type: lower-case"),
        (("operations: {echo: {url: /echo, request: raw}}", "operations: {}"), "at least one operation"),
        (("  echo: {", "  echo: {default: 1, "), "models.echo.default: Expected `bool`"),
        (("  echo: {", "  echo: {order: deadline, "), "models.echo.order: only transport sortedset has an order"),
        (("  echo: {", "  echo: {provider: p, "), "models.echo.provider: 'p' is not under providers"),
        (("models:", "modells:"), "modells: unknown section"),
        (("    default: true\n", "    default: true\n    claim_lease_ttl_seconds: 5\n"), "mean the same; set one"),
        (("  echo: {", "  echo: {result_dedup_ttl_seconds: 9, "), "echo.result_dedup_ttl_seconds: only transport sorted"),
        (("  small:", "  echo:claimed:"), "'echo:claimed' would share Redis keys with 'echo': rename one"),
        (("    service_type: transcription\n    operations: {transcribe: /v1", "    default: true\n    service_type: transcription\n    operations: {transcribe: /v1"), "is the default already"),
        ((GOOD, "[]"), "models.yaml: a mapping is expected"),
        ((GOOD, "models: {}"), "at least one model is needed"),
        ((GOOD, "a: ["), "models.yaml: "),
        ((GOOD, GOOD + "pipelines: {ingest: {stages: [store]}}"), "pipelines.ingest.stages: 'store' is not under models"),
        ((GOOD, GOOD + "pipelines: {ingest: {stages: [echo, echo]}}"), "pipelines.ingest.stages: 'echo' stands twice"),
        ((GOOD, GOOD + "pipelines: {ingest: {stages: []}}"), "pipelines.ingest.stages: .*length >= 1"),
        ((GOOD, GOOD + "pipelines: {a/b: {stages: [echo]}}"), "pipelines.a/b: a name has"),
        (
            (GOOD, GOOD.replace("  echo: {", "  echo: {transport: list, ") + "pipelines: {ingest: {stages: [echo]}}"),
            "models.echo.transport: a pipeline names this model, and stages have one of their own",
        ),
        (("  echo: {", "  echo: {transport: stage, "), "models.echo.transport: 'stage' is that of models which a pipeline"),
        (
            (GOOD, GOOD.replace("  echo: {", "  echo: {order: priority, ") + "pipelines: {ingest: {stages: [echo]}}"),
            "models.echo.order: only transport sortedset has an order",
        ),
        (
            (GOOD, GOOD.replace("  echo: {", "  echo: {cache_seconds: 9, ") + "pipelines: {ingest: {stages: [echo]}}"),
            "models.echo.cache_seconds: results of pipelines are not used again",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_file_is_named_with_its_rule(change: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _ = parse_config(GOOD.replace(*change))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigurationError, match="MODELS_FILE: required"):
        _ = load_config("")
    with pytest.raises(ConfigurationError, match="MODELS_FILE /nowhere"):
        _ = load_config("/nowhere")


def test_models_may_share_a_yaml_anchor() -> None:
    text = """
models:
  one: &stage {service_type: s, operations: {go: /go}}
  two: *stage
  three: {<<: *stage, transport: stream}
pipelines: {p: {stages: [one, two]}}
"""
    config = parse_config(text)

    assert [model.transport for model in config.models.values()] == ["stage", "stage", "stream"]


def test_a_file_that_is_whole_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    text = GOOD.replace("  echo: {", "  echo: {provider: p, cache_seconds: 900, ") + "providers: {p: {concurrent: 1}}"
    _ = path.write_text(text, "utf-8")

    assert load_config(str(path)).models["echo"].cache_seconds == 900


class ExampleSettings(Settings, frozen=True, kw_only=True):
    prefix: ClassVar[str] = "EXAMPLE_"
    model: Annotated[str, Meta(description="Which.")]
    port: Annotated[int, Meta(ge=0, le=65535, description="Where.")] = 80
    loud: Annotated[bool, Meta(description="How.")] = False
    token: Annotated[Secret, Meta(description="Who.")] = Secret("")

    def __post_init__(self) -> None:
        if self.loud and self.port == 0:
            raise ValueError("EXAMPLE_LOUD needs EXAMPLE_PORT")


def test_settings_come_typed_from_the_environment_and_an_empty_one_is_unset() -> None:
    settings = read_settings(
        ExampleSettings, {"EXAMPLE_MODEL": "m", "EXAMPLE_PORT": "", "EXAMPLE_LOUD": "True", "OTHER": "x"}
    )
    assert (settings.model, settings.port, settings.loud) == ("m", 80, True)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"EXAMPLE_MODEL": "m", "EXAMPLE_PRT": "1"}, r"EXAMPLE_PRT: unknown setting \(did you mean EXAMPLE_PORT\?\)"),
        ({"EXAMPLE_MODEL": "m", "EXAMPLE_PORT": "65536"}, "EXAMPLE_PORT: Expected `int` <= 65535"),
        ({"EXAMPLE_MODEL": "m", "EXAMPLE_PORT": "eighty"}, "EXAMPLE_PORT: Expected `int`, got `str`"),
        ({}, "EXAMPLE_MODEL: required"),
        ({"EXAMPLE_MODEL": "m", "EXAMPLE_LOUD": "1", "EXAMPLE_PORT": "0"}, "EXAMPLE_LOUD needs EXAMPLE_PORT"),
    ],
)
@requirement("start:any:unknown-setting-refused")
def test_an_unknown_or_unfit_variable_is_named_with_its_rule(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _ = read_settings(ExampleSettings, environment)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("REDIS_URL", "redis+cluster://a:1", r"redis\+cluster:// is not supported yet"),
        ("REDIS_URL", "redis+sentinel://a:1", r"redis\+sentinel:// is not supported yet"),
        ("REDIS_URL", "http://a", "REDIS_URL: redis://"),
        ("REDIS_URL", "redis://a:99999", "REDIS_URL: the port"),
        ("BLOBS_URL", "gs://x", "BLOBS_URL: s3://"),
        ("S3_CHECKSUMS", "always", "S3_CHECKSUMS: "),
        ("MAX_REAP_ATTEMPTS", "-1", "MAX_REAP_ATTEMPTS: Expected `int` >= 0"),
        ("LOG_LEVEL", "LOUD", "LOG_LEVEL: "),
    ],
)
def test_common_settings_are_checked_too(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _ = read_settings(CommonSettings, {variable: value})


def test_a_prefixed_name_is_an_alias_and_the_plain_one_wins() -> None:
    assert read_settings(CommonSettings, {"GATEWAY_RESULT_TTL_SECONDS": "5"}).result_ttl_seconds == 5
    both = {"GATEWAY_RESULT_TTL_SECONDS": "5", "RESULT_TTL_SECONDS": "6"}
    assert read_settings(CommonSettings, both).result_ttl_seconds == 6
    common = read_settings(CommonSettings, {"REAPER_MAX_REAP_ATTEMPTS": "0"})
    assert queue_limits(parse_config(GOOD).models["echo"], common).max_reap_attempts == 0


def test_a_secret_is_never_shown() -> None:
    settings = read_settings(ExampleSettings, {"EXAMPLE_MODEL": "m", "EXAMPLE_TOKEN": "hunter2"})
    common = read_settings(CommonSettings, {"REDIS_URL": "redis://u:hunter2@h", "REDIS_PASSWORD": "hunter2"})
    assert "hunter2" not in f"{settings!r} {common!r} {settings.token}"
    assert settings.token.reveal() == "hunter2"
    assert describe(ExampleSettings)[0] == ("EXAMPLE_MODEL", "required", "Which.")


def sorted_set(**settings: object) -> ModelConfig:
    lines = "".join(f", {name}: {value}" for name, value in settings.items())
    text = GOOD.replace("  echo: {", f"  echo: {{transport: sortedset{lines}, ".replace(", ,", ","))
    return parse_config(text).models["echo"]


def test_a_sorted_set_takes_the_seeds_defaults_from_the_environment_and_its_own_values_first() -> None:
    common = CommonSettings(
        claim_lease_ttl_seconds=120, claim_reclaim_interval_ms=9_000, result_dedup_ttl_seconds=4_000
    )
    assert CommonSettings().claim_lease_ttl_seconds == 300
    limits = queue_limits(sorted_set(), common)
    assert (limits.lease_ms, limits.reclaim_interval_ms, limits.result_dedup_ms) == (120_000, 9_000, 4_000_000)
    assert (limits.order, limits.batch_size) == ("deadline", 10)

    own = sorted_set(claim_lease_ttl_seconds=40, claim_reclaim_interval_ms=500, batch_size=3, order="priority")
    limits = queue_limits(own, common)
    assert (limits.lease_ms, limits.reclaim_interval_ms, limits.order, limits.batch_size) == (
        40_000,
        500,
        "priority",
        3,
    )
    assert queue_limits(sorted_set(lease_seconds=40), common).lease_ms == 40_000


def test_a_duplicate_marker_that_does_not_outlive_the_redelivery_chain_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"1260 does not outlive the longest redelivery chain.* = 1260 s"):
        _ = queue_limits(sorted_set(result_dedup_ttl_seconds=1260), CommonSettings())
    assert queue_limits(sorted_set(result_dedup_ttl_seconds=1261), CommonSettings()).result_dedup_ms == 1_261_000


@requirement("pipeline:any:defaults-of-the-seed")
def test_a_model_that_a_pipeline_names_has_the_seeds_layout_and_times() -> None:
    config = parse_config(GOOD + "pipelines: {ingest: {stages: [echo]}}")
    model = config.models["echo"]
    limits = queue_limits(model, CommonSettings())
    assert (model.transport, limits.order, model.retries.max_attempts) == ("stage", "stage", 3)
    assert (limits.lease_ms, limits.reclaim_interval_ms, limits.max_reap_attempts) == (90_000, 60_000, 3)
    (step,) = config.steps("ingest")
    assert (step.stage, step.url) == ("echo", model.operation(step.operation).url)
    own = parse_config(GOOD.replace("  echo: {", "  echo: {lease_seconds: 12, retries: {backoff_seconds: 1}, ")
                       + "pipelines: {ingest: {stages: [echo]}}").models["echo"]  # fmt: skip
    assert (own.lease_ms, own.retries.max_attempts, own.retries.backoff_seconds) == (12_000, 3, 1)
