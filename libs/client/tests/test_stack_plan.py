"""What `relayq dev` would start, without starting it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from relayq.dev.lock import locked
from relayq.dev.plan import Options, StackError, make_plan, read_environment
from relayq.dev.ports import free_ports

FREE = {"GATEWAY_PORT": "0", "GATEWAY_ADMIN_PORT": "0"}


def test_defaults_are_embedded_anonymous_and_on_free_ports(tmp_path: Path) -> None:
    plan = make_plan(Options(data=tmp_path), FREE)
    environ = plan.environ
    assert plan.redis is not None
    assert dict(zip(plan.redis.argv[1::2], plan.redis.argv[2::2], strict=True)) | {"--port": ""} == {
        "--port": "",
        "--bind": "127.0.0.1",
        "--dir": str(tmp_path / "redis"),
        "--save": "",
        "--appendonly": "yes",
        "--appendfsync": "everysec",
        "--maxmemory-policy": "noeviction",
        "--daemonize": "no",
    }
    assert environ["GATEWAY_AUTH"] == "none"
    assert environ["BLOBS_URL"] == (tmp_path / "blobs").as_uri()
    ports = [name for name in environ if name.endswith("_PORT")]
    assert len({environ[name] for name in ports}) == len(ports), "no two listen on one port"
    assert environ["RELAY_INFERENCE_URL"] == f"http://127.0.0.1:{environ['MOCK_PORT']}"
    assert [command.name for command in plan.services] == ["mock", "reaper", "gateway"]


def test_the_default_models_cover_transcription_and_are_written_once(tmp_path: Path) -> None:
    plan = make_plan(Options(data=tmp_path), FREE)
    whisper = plan.config.models["whisper-large-v3"]
    assert whisper.service_type == "transcription"
    assert whisper.operation("transcribe").url == "/v1/audio/transcriptions"
    assert {model.service_type for model in plan.config.models.values()} >= {"echo", "embeddings", "chat"}

    mine = tmp_path / "models.yaml"
    _ = mine.write_text("models: {own: {service_type: own, operations: {run: /echo}}}", "utf-8")
    assert list(make_plan(Options(data=tmp_path), FREE).config.models) == ["own"]


def test_options_win_over_the_environment_and_the_environment_over_defaults(tmp_path: Path) -> None:
    one, two = free_ports(2)
    environ = FREE | {
        "GATEWAY_PORT": str(one),
        "MOCK_PORT": "4711",
        "RELAY_DRAIN_SECONDS": "7",
        "GATEWAY_AUTH": "header",
    }
    assert make_plan(Options(data=tmp_path), environ).gateway_url == f"http://127.0.0.1:{one}"
    plan = make_plan(Options(data=tmp_path, gateway_port=two), environ)
    assert plan.gateway_url == f"http://127.0.0.1:{two}"
    assert plan.environ["GATEWAY_PORT"] == str(two)
    assert plan.mock_url == "http://127.0.0.1:4711"
    assert (plan.environ["RELAY_DRAIN_SECONDS"], plan.environ["GATEWAY_AUTH"]) == ("7", "header")


def test_another_redis_and_store_replace_the_embedded_ones(tmp_path: Path) -> None:
    options = Options(data=tmp_path, redis_url="redis://:secret@elsewhere:6379/1", blobs_url="s3://bucket/p")
    plan = make_plan(options, FREE)
    assert plan.redis is None
    assert plan.environ["REDIS_URL"] == "redis://:secret@elsewhere:6379/1"
    assert plan.shown_redis_url == "redis://elsewhere:6379/1"
    assert plan.environ["BLOBS_URL"] == "s3://bucket/p"

    named = make_plan(Options(data=tmp_path), FREE | {"REDIS_URL": "redis://named:1"})
    assert (named.redis, named.redis_url) == (None, "redis://named:1")


def test_an_explicit_redis_port_means_the_embedded_one_without_another_server_s_password(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    environ = FREE | {"REDIS_URL": "redis://named:1", "REDIS_PASSWORD": "secret"}
    plan = make_plan(Options(data=tmp_path, redis_port=port), environ)
    assert plan.redis is not None
    assert plan.redis_url == f"redis://127.0.0.1:{port}/0"
    assert "REDIS_PASSWORD" not in plan.environ


def test_anonymous_access_is_not_chosen_off_loopback(tmp_path: Path) -> None:
    plan = make_plan(Options(data=tmp_path), FREE | {"GATEWAY_HOST": "0.0.0.0"})
    assert "GATEWAY_AUTH" not in plan.environ
    assert plan.gateway_url.startswith("http://127.0.0.1:")


def test_a_port_in_use_is_named_with_its_option(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StackError, match=rf"port {port} .* --gateway-port"):
            _ = make_plan(Options(data=tmp_path, gateway_port=port), FREE)


@pytest.mark.parametrize(
    ("options", "environ", "words"),
    [
        ({"redis_url": "redis://x", "redis_port": 1}, {}, "--redis-port"),
        ({}, {"MOCK_PORT": "many"}, "MOCK_PORT"),
        ({}, {"MODELS_FILE": "/no/such/models.yaml"}, "/no/such/models.yaml"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    tmp_path: Path, options: dict[str, str | int], environ: dict[str, str], words: str
) -> None:
    with pytest.raises(StackError, match=words):
        _ = make_plan(Options(data=tmp_path, **options), FREE | environ)  # type: ignore[arg-type]


def test_a_relay_gets_its_model_and_a_metrics_port_of_its_own(tmp_path: Path) -> None:
    plan = make_plan(Options(data=tmp_path), FREE)
    one, two = plan.relay("echo"), plan.relay("echo")
    assert one.environ["RELAY_MODEL"] == "echo"
    assert one.environ["RELAY_METRICS_PORT"] != two.environ["RELAY_METRICS_PORT"]


def test_what_was_chosen_can_be_read_again(tmp_path: Path) -> None:
    plan = make_plan(Options(data=tmp_path / "with space"), FREE)
    plan.write_environment()
    found = read_environment(tmp_path / "with space")
    assert found["REDIS_URL"] == plan.redis_url
    assert found["RELAYQ_URL"] == plan.gateway_url
    assert found["MODELS_FILE"] == str(tmp_path / "with space" / "models.yaml")


def test_a_directory_has_one_stack_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(StackError, match=r"pid \d+.*--data"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
