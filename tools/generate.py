"""Write the pages and tables that come from the code; ``--check`` writes nothing and says which are not current."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Final

from gateway.settings import GatewaySettings
from mock_inference.settings import VARIABLES as MOCK_VARIABLES
from queuecore.job import TERMINAL, TRANSITIONS
from queuecore.settings import CommonSettings, Settings, describe
from queuecore.telemetry.names import metrics_table
from reaper.settings import ReaperSettings
from relay.settings import RelaySettings

ROOT: Final = Path(__file__).parents[1]
Row = tuple[str, str, str]


def configuration() -> str:
    """Every variable of every service, with its default."""
    sections: list[tuple[str, str, Iterable[Row]]] = [
        ("Common", "Read by every service, and by `relayq dev` and `relayq doctor`.", describe(CommonSettings)),
        ("Gateway", "", _own(GatewaySettings)),
        ("Relay", "", _own(RelaySettings)),
        ("Reaper", "", _own(ReaperSettings)),
        ("Mock inference server", "", MOCK_VARIABLES),
    ]
    lines = [
        "# Configuration",
        "",
        "Made by `make generate` from the settings classes. Settings are read once, at start. A variable under one of our",
        "prefixes that nobody knows stops the start and is named, and so is a value out of bounds; an empty one is unset.",
        "The standard `AWS_*` variables are read by the S3 client. Models are described in the file that `MODELS_FILE` names.",
        "",
        "Accepted aliases: "
        + ", ".join(f"`{alias}` for `{name}`" for alias, name in CommonSettings.aliases.items())
        + ".",
    ]
    for title, text, rows in sections:
        lines += ["", f"## {title}", *([text] if text else []), "", "| variable | default | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {_code(default)} | {meaning} |" for name, default, meaning in rows]
    return "\n".join(lines) + "\n"


def _own(cls: type[Settings]) -> list[Row]:
    return describe(cls)


def _code(default: str) -> str:
    return default if default in {"required", "unset"} else f"`{default}`"


def metrics() -> str:
    """Every metric."""
    return (
        "# Metrics\n\nMade by `make generate` from `queuecore.telemetry.names`. Labels have few values: models, outcomes,"
        " states, verbs; never job ids or callers.\n\n" + metrics_table().rstrip() + "\n"
    )


def job_life() -> str:
    """The transition table as a diagram, inside the page that a person wrote around it."""
    page = ROOT / "docs/architecture/02-job-life.md"
    text = page.read_text("utf-8")
    begin, end = "<!-- transitions: made by make generate -->", "<!-- end of transitions -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    verbs: dict[tuple[str, str], list[str]] = {}
    for verb, source, target in TRANSITIONS:
        verbs.setdefault((source or "[*]", target), []).append(verb)
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [
        f"    {source} --> {target}: {', '.join(dict.fromkeys(names))}" for (source, target), names in verbs.items()
    ]
    lines += [f"    {status} --> [*]" for status in sorted(TERMINAL)]
    return f"{before}{begin}\n" + "\n".join([*lines, "```"]) + f"\n{end}{after}"


def guarantees() -> str:
    """The promises and their proofs."""
    return str(_module("tests/requirements.py").current_page())


def _module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("generated_from", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


PAGES: Final[dict[str, Callable[[], str]]] = {
    "docs/configuration.md": configuration,
    "docs/metrics.md": metrics,
    "docs/architecture/02-job-life.md": job_life,
    "docs/guarantees.md": guarantees,
}


def main(arguments: list[str]) -> int:
    """Write every page, or with ``--check`` compare; 1 when one is not current."""
    stale = 0
    for path, make in PAGES.items():
        page, text = ROOT / path, make()
        old = page.read_text("utf-8") if page.exists() else ""
        if old == text:
            continue
        if arguments == ["--check"]:
            stale = 1
            sys.stdout.writelines(
                difflib.unified_diff(old.splitlines(True), text.splitlines(True), path, "made anew", n=0)
            )
        else:
            _ = page.write_text(text, "utf-8")
            sys.stdout.write(f"{path}\n")
    if stale:
        sys.stdout.write("run: make generate\n")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
