"""The example of documents end to end: a small corpus, killed relays, a stand-in for the model's weights."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from queuecore.testing.requirement import requirement

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ROOT: Final = Path(__file__).parents[2]
CORPUS: Final = [ROOT / "docs" / f"{name}.md" for name in ("models", "transports", "console", "compose", "http-api")]


@pytest.mark.timeout(180)
@requirement("pipeline:example:documents")
async def test_the_documents_of_the_example_become_a_graph_while_relays_are_killed(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "examples/documents/run.py"), "--embedding", "words", "--data", str(tmp_path),
        "--relays", "3", "--kill", "2", "--seconds", "0.4", *map(str, CORPUS),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
    said = re.search(r"5 of 5 documents in .*; (\d+) relays killed, (\d+) stages run again; 5 nodes", output)
    assert said, output
    assert int(said[1]) > 0, output
    nodes = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "nodes").glob("*.json")]
    assert sorted(node["path"] for node in nodes) == sorted(path.relative_to(ROOT).as_posix() for path in CORPUS)
    picture = ElementTree.fromstring((tmp_path / "graph.svg").read_text("utf-8"))
    assert len(picture.findall(".//{*}circle")) == len(CORPUS)
