"""The admin port: queues and dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
import msgspec

from relayq.errors import UnexpectedAnswer
from relayq.exchange import Exchange, Flow, Patience, accepted, exchanged
from relayq.session import Session
from relayq.upload import json_body

DEFAULT_URL: Final = "http://127.0.0.1:8081"
PAGE_LIMIT: Final = 500


class AdminClient:
    """Blocking client of the admin port. Answers are the server's JSON; errors are those of ``relayq.errors``."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_seconds: float = 60,
        patience_seconds: float = 30,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._session = Session(url, headers=headers, timeout_seconds=timeout_seconds, transport=transport)
        self._patience = Patience(patience_seconds)

    def queues(self) -> list[dict[str, Any]]:
        """Every queue: name, depths by state, oldest age."""
        return _listed(self._call("GET", "/queues"), "queues")

    def queue(self, model: str) -> dict[str, Any]:
        """One queue, with its claims and the lease each has left."""
        return self._call("GET", f"/queues/{_name(model)}")

    def pause(self, model: str) -> dict[str, Any]:
        """Hide waiting jobs from claims and from the scaler; running ones go on."""
        return self._call("POST", f"/queues/{_name(model)}/pause")

    def resume(self, model: str) -> dict[str, Any]:
        """End a pause."""
        return self._call("POST", f"/queues/{_name(model)}/resume")

    def purge(self, model: str) -> dict[str, Any]:
        """Cancel every waiting job."""
        return self._call("POST", f"/queues/{_name(model)}/purge")

    def deadletters(self, model: str) -> list[dict[str, Any]]:
        """Status documents of the dead letters, oldest first."""
        found: list[dict[str, Any]] = []
        while True:
            query = {"offset": str(len(found)), "limit": str(PAGE_LIMIT)}
            page = self._call("GET", f"/queues/{_name(model)}/deadletter", query=query)
            letters = _listed(page, "jobs")
            found += letters
            if not letters or len(found) >= int(page.get("total", 0)):
                return found

    def redrive(
        self, model: str, ids: Sequence[str] | None = None, *, per_second: float | None = None
    ) -> dict[str, Any]:
        """Queue dead letters again: these, or all of them."""
        wish: dict[str, Any] = {"all": True} if ids is None else {"ids": list(ids)}
        if per_second is not None:
            wish["per_second"] = per_second
        return self._call("POST", f"/queues/{_name(model)}/deadletter/redrive", wish)

    def drop(self, model: str, job_id: str) -> None:
        """Remove one dead letter from the list."""
        _ = self._call("DELETE", f"/queues/{_name(model)}/deadletter/{quote(job_id, safe='')}")

    def clear_cache(self, model: str | None = None) -> int:
        """Forget kept answers, of one model or all, those of reads too; the jobs stay. How many that were."""
        return int(self._call("DELETE", "/cache" if model is None else f"/cache/{_name(model)}").get("removed", 0))

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _call(
        self, method: str, path: str, body: object = None, *, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        content = None if body is None else json_body(msgspec.json.encode(body))
        return self._session.run(_call(Exchange(method, path, body=content, query=query or {}), self._patience))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _call(exchange: Exchange, patience: Patience) -> Flow[dict[str, Any]]:
    reply = accepted((yield from exchanged(exchange, patience)))
    data = reply.json() if reply.body else {}
    if not isinstance(data, dict):
        raise UnexpectedAnswer(f"{exchange.path}: not a JSON object")
    return data


def _listed(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = data.get(name)
    if not isinstance(found, list):
        raise UnexpectedAnswer(f"no list of {name} in the answer")
    return found


def _name(model: str) -> str:
    """As one path: a model's slashes stay, the route takes ``{model:path}``."""
    return quote(model, safe="/:")
