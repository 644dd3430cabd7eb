"""The scripts' headers are their interface, and writes come after guards."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from queuecore.broker import Broker
from queuecore.redis import scripts
from queuecore.testing.lacking import lacking
from queuecore.testing.operator import LACKING

LUA = Path(str(scripts.LUA))
NAMES = scripts.names()
EDGE = [f"edge/{path.stem}" for path in sorted((LUA / "edge").glob("*.lua"))]  # the gateway's own
ALL = [*NAMES, *EDGE]
READS = {
    "SCARD",
    "SRANDMEMBER",
    "HGET",
    "HGETALL",
    "HEXISTS",
    "LLEN",
    "LPOS",
    "LRANGE",
    "ZCARD",
    "ZRANGE",
    "ZRANGEBYSCORE",
    "ZSCORE",
    "EXISTS",
    "GET",
    "TIME",
}
TRANSPORTS = sorted(path.name[6:-4] for path in (LUA / "_include").glob("place_*.lua"))
CONTRACT = Path(__file__).parents[1] / "contract"


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", ["KEYS", "ARGV"])
def test_the_header_lists_exactly_what_the_body_reads(name: str, kind: str) -> None:
    text = (LUA / f"{name}.lua").read_text("utf-8")
    declared = [int(number) for of, number, _ in scripts.PARAMETER.findall(text) if of == kind]
    body = re.sub(r"^--.*$", "", text, flags=re.MULTILINE)
    used = {int(number) for number in re.findall(rf"{kind}\[(\d+)\]", body)}
    assert declared == list(range(1, len(declared) + 1))
    assert used == set(declared)


@pytest.mark.parametrize("name", ALL)
def test_guards_only_read(name: str) -> None:
    guards, marker, _ = (LUA / f"{name}.lua").read_text("utf-8").partition("\n-- writes")
    assert marker
    assert set(re.findall(r'redis\.call\("(\w+)"', guards)) <= READS


@pytest.mark.parametrize("name", ALL)
def test_every_word_that_a_script_answers_stands_in_its_header(name: str) -> None:
    text = (LUA / f"{name}.lua").read_text("utf-8")
    header, _, body = text.partition("-- @include")
    for word in re.findall(r'return \{ "(\w+)"', body):
        assert f'"{word}"' in header, word
    assert header.startswith(f"-- {name}: ")
    assert "-- Invariant" in header


def test_a_verb_has_one_name_as_script_method_and_contract_file() -> None:
    methods = {name for name in vars(Broker) if not name.startswith("_")}
    files = {path.stem.removeprefix("test_") for path in CONTRACT.glob("test_*.py")}
    assert set(NAMES) <= methods
    assert set(NAMES) <= files


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_transport_has_the_same_functions(transport: str) -> None:
    def functions(name: str) -> set[str]:
        return set(re.findall(r"^local function (\w+)", scripts.load("claim", name).source, re.MULTILINE))

    wanted = {
        "hold",
        "unhold",
        "lease_end",
        "hide_waiting",
        "show_waiting",
        "note_verdict",
        "is_held",
        "lease_is_live",
        "set_lease",
        "drop_lease",
        "leave",
        "enter",
        "put_back",
        "put_aside",
        "is_waiting",
        "waiting_count",
        "bury",
        "is_buried",
        "dig_up",
        "note_failure",
        "note_completed",
        "forget",
    }
    assert wanted <= functions(transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ALL)
def test_luacheck_finds_nothing_in_the_rendered_script(name: str, transport: str, tmp_path: Path) -> None:
    luacheck = shutil.which("luacheck")
    if luacheck is None:
        lacking("luacheck is not installed (Debian: lua-check)")
    path = tmp_path / f"{name.replace('/', '-')}.lua"
    _ = path.write_text(scripts.load(name, transport).source, "utf-8")
    done = subprocess.run(
        [luacheck, "--no-color", "--std", "lua51", "--globals", "redis", "cjson", "KEYS", "ARGV",
         "--ignore", "211", "--max-line-length", "140", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", sorted([*LUA.glob("*.lua"), *LUA.glob("edge/*.lua")]), ids=lambda path: path.stem)
def test_a_script_stays_readable(path: Path) -> None:
    body = [line for line in path.read_text("utf-8").splitlines() if line.strip() and not line.startswith("--")]
    assert len(body) <= 60


def test_every_capability_that_a_transport_may_lack_is_in_the_docs() -> None:
    page = (Path(__file__).parents[4] / "docs" / "transports.md").read_text("utf-8")
    for capability in LACKING:
        assert f"| `{capability}` |" in page
