"""Documents through a pipeline of four stages, on this machine, with relays killed on the way.

make example/documents                          the repository's own pages, with a real embedding model
.venv/bin/python examples/documents/run.py --embedding words docs/*.md      without the model's weights
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from picture import draw
from stages import read_nodes

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STARTED = re.compile(r"relay (\d+) started for (\S+)")


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 when every document has its node."""
    options = _options(arguments)
    data: Path = options.data or Path(tempfile.mkdtemp(prefix="relayq-documents-"))
    files = options.files or sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    began = time.monotonic()
    with (
        stage_server(options.python, options.embedding, data / "nodes", options.seconds) as inference_url,
        stack(data / "stack", inference_url, kills=options.kill, relays=options.relays) as (url, killed),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        runs = [submitted(client, path) for path in files]
        print(f"{len(runs)} documents submitted")
        finished = [verdict(client, run) for run in runs]
    bad = [one for one in finished if one["status"] != "completed"]
    for one in bad:
        print(f"{one['job_id']}: {one['status']} at {one['stage']}: {one['error']}")
    nodes = read_nodes(data / "nodes")
    reaps = sum(stage["reaps"] for one in finished for stage in one["stages"])
    print(f"{len(finished) - len(bad)} of {len(files)} documents in {time.monotonic() - began:.1f} s; "
          f"{len(killed)} relays killed, {reaps} stages run again; {len(nodes)} nodes")  # fmt: skip
    output: Path = options.output or data / "graph.svg"
    _ = output.write_text(draw(nodes), "utf-8")
    print(f"the graph of nearest neighbours: {output}")
    return 1 if bad or len(nodes) != len(files) else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("files", nargs="*", type=Path, help="Markdown files; README.md and docs/ by default")
    _ = parser.add_argument("--embedding", choices=["minilm", "words"], default="minilm")
    _ = parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that has the embedding's packages"
    )
    _ = parser.add_argument("--data", type=Path, help="where everything is kept; a temporary directory by default")
    _ = parser.add_argument("--output", type=Path, help="the picture; graph.svg in --data by default")
    _ = parser.add_argument("--kill", type=int, default=4, metavar="N", help="relays that are killed on the way")
    _ = parser.add_argument("--relays", type=int, default=4, metavar="N", help="relays at once")
    _ = parser.add_argument("--seconds", type=float, default=0.2, help="what every stage takes at the least")
    return parser.parse_args(arguments)


@contextmanager
def stage_server(python: str, embedding: str, nodes: Path, seconds: float) -> Iterator[str]:
    """The inference server; one for all stages here, each its own in a cluster."""
    command = [python, str(HERE / "stages.py"), "--nodes", str(nodes), "--embedding", embedding,
               "--seconds", str(seconds)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            port = process.stdout.readline().strip()
            if not port:
                raise SystemExit("the stages' server did not start; see above")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@contextmanager
def stack(data: Path, inference_url: str, *, kills: int, relays: int) -> Iterator[tuple[str, list[int]]]:
    """`relayq dev` on free ports; of the relays it starts, every third is killed until ``kills`` are."""
    port = free_port()
    environ = os.environ | {"MODELS_FILE": str(HERE / "models.yaml"), "RELAY_INFERENCE_URL": inference_url}
    command = [str(Path(sys.executable).with_name("relayq")), "dev", "--data", str(data), "--gateway-port", str(port),
               "--admin-port", "0", "--max-relays", str(relays)]  # fmt: skip
    killed: list[int] = []
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:

        def watch() -> None:
            assert process.stdout
            seen = 0
            for line in process.stdout:
                if found := STARTED.search(line):
                    seen += 1
                    if seen % 3 == 0 and len(killed) < kills:
                        threading.Timer(0.6, kill, [int(found[1]), killed]).start()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            await_ready(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}", killed
        finally:
            process.terminate()
            _ = process.wait(30)
            watcher.join(5)


def kill(pid: int, killed: list[int]) -> None:
    """SIGKILL, as the death of a node would be; unless it was done already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    killed.append(pid)


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def await_ready(url: str, process: subprocess.Popen[str]) -> None:
    """Until the gateway is ready, a minute at the most."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"{url}/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit("relayq dev did not get ready")


def submitted(client: httpx.Client, path: Path) -> str:
    """The run's URL. Its Idempotency-Key makes a repeat of this command harmless while the stack runs."""
    name = path.resolve().relative_to(ROOT).as_posix() if path.resolve().is_relative_to(ROOT) else path.name
    answer = client.post(
        "/pipelines/ingest", content=path.read_bytes(), params={"path": name},
        headers={"content-type": "text/markdown", "idempotency-key": name},
    )  # fmt: skip
    _ = answer.raise_for_status()
    return answer.headers["location"]


def verdict(client: httpx.Client, url: str) -> dict:
    """The run's last status document, by long polls."""
    document = client.get(url)
    while document.json()["status"] not in {"completed", "failed", "cancelled", "expired"}:
        answer = client.get(url, params={"wait": 30}, headers={"if-none-match": document.headers["etag"]})
        document = document if answer.status_code == 304 else answer
    return document.json()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
