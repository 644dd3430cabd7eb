"""/metrics and /health from a thread: answers, bounds, and no noise."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from queuecore.clock import monotonic
from queuecore.errors import ConfigurationError
from queuecore.telemetry import endpoint, metrics
from queuecore.telemetry.endpoint import Endpoint, Health, serve

GOOD = Health(live=True, ready=True)


class Served:
    def __init__(self) -> None:
        self.health: Health | Exception = GOOD
        self.endpoint: Endpoint = serve("127.0.0.1", 0, self.ask)

    def ask(self) -> Health:
        if isinstance(self.health, Exception):
            raise self.health
        return self.health

    def get(self, path: str, method: str = "GET") -> tuple[int, str, dict[str, str]]:
        link = http.client.HTTPConnection("127.0.0.1", self.endpoint.port, timeout=5)
        link.request(method, path)
        answer = link.getresponse()
        body = answer.read().decode()
        link.close()
        return answer.status, body, {name.lower(): value for name, value in answer.headers.items()}


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.endpoint.close()


def test_metrics_are_shown(served: Served) -> None:
    metrics.JOBS_REAPED.labels("endpoint-test", "requeued").inc()
    status, body, headers = served.get("/metrics")

    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    assert 'gatewai_async_jobs_reaped_total{model="endpoint-test",outcome="requeued"} 1.0' in body


@pytest.mark.parametrize(
    ("health", "live", "ready"),
    [
        (Health(live=True, ready=True), 200, 200),
        (Health(live=True, ready=False, detail={"redis": "away"}), 200, 503),
        (Health(live=False, ready=False, detail={"loop": "deaf"}), 503, 503),
    ],
)
def test_health_says_what_is_wrong(served: Served, health: Health, live: int, ready: int) -> None:
    served.health = health
    for path, expected in (("/health/live", live), ("/health/ready", ready)):
        status, body, headers = served.get(path)
        assert status == expected
        assert json.loads(body)["detail"] == health.detail
        assert (headers["content-type"], headers["cache-control"]) == ("application/json; charset=utf-8", "no-store")


def test_a_check_that_fails_itself_is_not_healthy(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.health = RuntimeError("with a password=word")

    status, body, _ = served.get("/health/live")
    assert status == 503
    assert json.loads(body)["detail"] == {"health": "RuntimeError"}
    assert caplog.records


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("GET", "/metricsx", 404), ("POST", "/metrics", 405)]
)
def test_everything_else_is_refused(served: Served, method: str, path: str, status: int) -> None:
    assert served.get(path, method)[0] == status


def test_a_head_request_has_no_body(served: Served) -> None:
    assert served.get("/health/live", "HEAD")[:2] == (200, "")


def test_it_writes_nothing_about_requests(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    _ = served.get("/health/live")
    _ = served.get("/nothing")
    with socket.create_connection(("127.0.0.1", served.endpoint.port)) as link:
        link.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")  # and gone before the answer
    with socket.create_connection(("127.0.0.1", served.endpoint.port)) as link:
        link.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        _ = link.recv(100)
    _ = served.get("/health/live")

    assert capfd.readouterr() == ("", "")


def test_a_silent_client_delays_nobody(served: Served) -> None:
    silent = [socket.create_connection(("127.0.0.1", served.endpoint.port)) for _ in range(10)]
    began = monotonic()
    assert served.get("/health/live")[0] == 200

    assert monotonic() - began < 2
    for link in silent:
        link.close()


def test_the_number_of_threads_is_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    crowd = [socket.create_connection(("127.0.0.1", served.endpoint.port)) for _ in range(100)]
    try:
        refused = 0
        for link in crowd:
            link.settimeout(0.05)
            try:
                refused += link.recv(1) == b""
            except TimeoutError:
                continue
        assert refused >= 100 - endpoint._MOST_REQUESTS
        assert threading.active_count() - before <= endpoint._MOST_REQUESTS
    finally:
        for link in crowd:
            link.close()


def test_an_address_that_cannot_be_used_is_named(served: Served) -> None:
    with pytest.raises(ConfigurationError, match=f"127.0.0.1:{served.endpoint.port}"):
        _ = serve("127.0.0.1", served.endpoint.port, lambda: GOOD)


def test_close_frees_the_port() -> None:
    first = Served()
    first.endpoint.close()
    again = serve("127.0.0.1", first.endpoint.port, lambda: GOOD)

    assert again.port == first.endpoint.port
    again.close()


def test_ipv6_is_served() -> None:
    try:
        made = serve("::1", 0, lambda: GOOD)
    except ConfigurationError:
        pytest.skip("this machine has no IPv6 loopback")
    link = http.client.HTTPConnection("::1", made.port, timeout=5)
    link.request("GET", "/health/live")
    assert link.getresponse().status == 200
    link.close()
    made.close()


def test_prometheus_is_imported_by_the_first_scrape_only() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from queuecore.telemetry.endpoint import Health, serve; "
        "made = serve('127.0.0.1', 0, lambda: Health(True, True)); print('prometheus_client' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
