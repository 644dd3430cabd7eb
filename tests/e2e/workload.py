"""Clients of the product: they submit, cancel and watch jobs, and write down every call and its answer.

A call ends as ok, refused (the answer is an error, or nothing listened: it did not run) or unknown (no whole answer).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

import httpx

from e2e.cluster import MODEL, PODS, RECEIVER, Cluster, eventually
from e2e.history import TERMINAL, History

SERVICE: Final = "transcription"
CALLBACK: Final = f"http://{RECEIVER}/echo"
Params = Mapping[str, str | float]  # form fields beside the file
_counter = itertools.count(1)


def new_tag() -> str:
    """A name that no other job of this machine's runs has."""
    return f"{time.time_ns():x}-{next(_counter)}"


def content_of(tag: str) -> bytes:
    """The file that the job of this tag carries: no two are alike."""
    return f"input of {tag}\n".encode() * 64


class Workload:
    """Submits and observes. Safe for use by many threads."""

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        *,
        place: str = f"jobs/{SERVICE}",
        model: str = MODEL,
        timeout_seconds: float = 60,
    ) -> None:
        """``place`` is where jobs are posted; ``model`` "" names none."""
        self._cluster = cluster
        self._place = place
        self._model = model
        self.history = history
        self._http = httpx.Client(
            base_url=cluster.url,
            timeout=httpx.Timeout(timeout_seconds, connect=5),
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=0),
        )
        self._seen: dict[str, tuple[str, int]] = {}
        self._open: dict[str, None] = {}  # acknowledged, and nobody has seen them end; oldest first
        self._known: set[tuple[str, str, int]] = set()  # entries of journals
        self._began = time.time_ns() / 1e9  # runs before it belong to other tests
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    # -- single calls -------------------------------------------------------------------------------------------

    def submit(self, *, content: bytes | None = None, params: Params | None = None) -> str | None:
        """Post one job; its id when it was acknowledged. ``params`` reach the model (``mock_delay_seconds``)."""
        tag = new_tag()
        _ = self.history.add("submit", "invoked", tag=tag)
        try:
            answer = self._http.post(
                f"/{self._place}",
                data={
                    **({"model": self._model} if self._model else {}),
                    "tag": tag,
                    "callback_url": CALLBACK,
                    **{name: str(value) for name, value in (params or {}).items()},
                },
                files={"file": (f"{tag}.wav", content_of(tag) if content is None else content, "audio/wav")},
            )
        except httpx.ConnectError as error:
            _ = self.history.add("submit", "refused", tag=tag, detail=repr(error))
            return None
        except httpx.HTTPError as error:
            _ = self.history.add("submit", "unknown", tag=tag, detail=repr(error))
            return None
        document = _document(answer)
        if answer.status_code not in {200, 202}:
            code = str(document.get("code", ""))
            _ = self.history.add("submit", "refused", tag=tag, http_status=answer.status_code, error_code=code)
            return None
        job_id, status = str(document["job_id"]), str(document["status"])
        self._open[job_id] = None
        _ = self.history.add("submit", tag=tag, job_id=job_id, status=status, http_status=answer.status_code)
        return job_id

    def submit_surely(self, *, within_seconds: float = 60, params: Params | None = None) -> str:
        """Post until one is acknowledged, a new job at each try."""
        accepted = eventually(
            lambda: self.submit(params=params), within=within_seconds, every=0.2, what="a submission is accepted"
        )
        assert accepted is not None
        return accepted

    def read(self, job_id: str) -> dict[str, Any] | None:
        """The status document, recorded when it tells something new or the end; None when there is no good answer."""
        try:
            answer = self._http.get(f"/{self._place}/{job_id}")
        except httpx.ConnectError as error:
            _ = self.history.add("read", "refused", job_id=job_id, detail=repr(error))
            return None
        except httpx.HTTPError as error:
            _ = self.history.add("read", "unknown", job_id=job_id, detail=repr(error))
            return None
        document = _document(answer)
        if answer.status_code != 200:
            code = str(document.get("code", ""))
            _ = self.history.add("read", "refused", job_id=job_id, http_status=answer.status_code, error_code=code)
            return None
        status, attempts = str(document["status"]), int(document["attempts"])
        if status in TERMINAL:
            _ = self._open.pop(job_id, None)
        if status in TERMINAL or self._seen.get(job_id) != (status, attempts):
            self._seen[job_id] = (status, attempts)
            _ = self.history.add(
                "read",
                job_id=job_id,
                status=status,
                attempts=attempts,
                digest=str((document.get("result") or {}).get("sha256") or ""),
                error_code=str((document.get("error") or {}).get("code") or ""),
                http_status=200,
            )
        return document

    def cancel(self, job_id: str) -> int:
        """DELETE the job; the answer's status, 0 when there was none."""
        try:
            answer = self._http.delete(f"/{self._place}/{job_id}")
        except httpx.HTTPError as error:
            _ = self.history.add("cancel", "unknown", job_id=job_id, detail=repr(error))
            return 0
        document = _document(answer)
        good = answer.status_code in {200, 202}
        _ = self.history.add(
            "cancel",
            "ok" if good else "refused",
            job_id=job_id,
            status=str(document.get("status", "")) if answer.status_code == 200 else "",
            http_status=answer.status_code,
            error_code="" if good else str(document.get("code", "")),
        )
        return answer.status_code

    def result(self, job_id: str) -> bytes:
        """The result's bytes; raises when there is none."""
        return self._http.get(f"/{self._place}/{job_id}/result").raise_for_status().content

    def ready(self) -> httpx.Response:
        """The readiness of whichever gateway answers."""
        return self._http.get("/health/ready")

    # -- waiting ------------------------------------------------------------------------------------------------

    def until(self, job_id: str, *statuses: str, within_seconds: float, attempts: int = 0) -> dict[str, Any]:
        """Read until the job has one of the statuses (and so many attempts); that document."""
        last: dict[str, Any] | None = None

        def there() -> bool:
            nonlocal last
            last = self.read(job_id)
            return last is not None and last["status"] in statuses and last["attempts"] >= attempts

        try:
            _ = eventually(there, within=within_seconds, every=0.02)
        except AssertionError:
            wanted = " or ".join(statuses)
            raise AssertionError(f"job {job_id} is not {wanted} after {within_seconds} s: {last}") from None
        assert last is not None
        return last

    def at_stage(self, job_id: str, stage: str, *, within_seconds: float) -> dict[str, Any]:
        """Read until a relay runs this stage of the run; that document."""
        last: dict[str, Any] | None = None

        def there() -> bool:
            nonlocal last
            last = self.read(job_id)
            return last is not None and (last["stage"], last["status"]) == (stage, "processing")

        _ = eventually(there, within=within_seconds, every=0.02, what=f"{job_id} runs at {stage}")
        assert last is not None
        return last

    def running(self, *, within_seconds: float = 30, params: Params | None = None) -> tuple[str, int]:
        """Submit a job and wait until a relay holds it; its id and the pod."""
        job_id = self.submit_surely(params=params)
        _ = self.until(job_id, "processing", within_seconds=within_seconds)
        pod = self._cluster.pod_of(job_id)
        assert pod, f"job {job_id} ended before it was found: {self._cluster.record(job_id)}"
        return job_id, pod

    def drain(self, *, within_seconds: float) -> None:
        """Read every open job until all have ended, then each of them once more, and collect what the models did."""
        end = time.monotonic() + within_seconds
        while self._open and time.monotonic() < end:  # the checkers name what is left
            self._read_all(list(self._open))
        self._read_all(list(self.history.acknowledged().values()))
        self.collect_runs()

    def _read_all(self, job_ids: Sequence[str]) -> None:
        with ThreadPoolExecutor(8) as pool:
            _ = list(pool.map(self.read, job_ids))

    def collect_runs(self) -> None:
        """Take the models' journals into the history; a journal dies with its model, so call it before and after."""
        for pod in PODS:
            for entry in self._news(f"model-{pod}"):
                tag = dict(entry["fields"]).get("tag", "")
                at_seconds = _epoch(entry["started_at"])
                _ = self.history.add("run", at_seconds=at_seconds, tag=tag, job_id=entry["job_id"] or "")

    def collect_notices(self) -> None:
        """Take what the receiver of webhooks was told into the history."""
        for entry in self._news("receiver"):
            event_id = dict(entry["headers"])["webhook-id"]
            _ = self.history.add(
                "notice",
                at_seconds=_epoch(entry["started_at"]),
                job_id=event_id.partition(":")[0],
                status=str(entry["members"]["type"]).removeprefix("job."),
                detail=event_id,
            )

    def _news(self, service: str) -> list[dict[str, Any]]:
        """Entries of a journal, whole, of this workload's time and not seen before."""
        try:
            entries = self._cluster.journal(service)
            started = str(self._cluster.container(service).attrs["State"]["StartedAt"])
        except Exception as error:  # noqa: BLE001  whatever keeps a broken container from answering
            _ = self.history.add("heal", "unknown", target=service, detail=f"no journal: {error!r}"[:200])
            return []
        news: list[dict[str, Any]] = []
        for entry in entries:
            key = (service, started, int(entry["id"]))
            # A request is looked at when its body was read; what is cut off before that ran nothing.
            if entry["method"] == "POST" and entry["received_at"] and key not in self._known:
                self._known.add(key)
                if _epoch(entry["started_at"]) >= self._began:
                    news.append(entry)
        return news

    # -- load ---------------------------------------------------------------------------------------------------

    def start(self, *, per_second: float, clients: int = 4, most_open: int = 12, params: Params | None = None) -> None:
        """Submit in the background until ``stop``, and watch what is open.

        No more than about ``most_open`` jobs are open at once: a machine that is slow today gets less to do, and what is
        left at the end is done soon.
        """
        pause = clients / per_second

        def client() -> None:
            due = time.monotonic()
            while not self._stop.is_set():
                if len(self._open) < most_open:
                    _ = self.submit(params=params)
                due = max(due + pause, time.monotonic() - 1)  # a stall is made up for, up to a second's worth
                _ = self._stop.wait(max(0.0, due - time.monotonic()))

        def watch() -> None:
            while not self._stop.wait(0.05):
                for job_id in list(self._open):
                    if self._stop.is_set():
                        return
                    _ = self.read(job_id)

        self._threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
        self._threads.append(threading.Thread(target=watch, daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the load; calls under way end first."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._http.close()


def _document(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _epoch(rfc3339: str) -> float:
    return datetime.fromisoformat(rfc3339).timestamp()
