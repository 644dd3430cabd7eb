"""The Python client: ``Client`` blocks, ``AsyncClient`` awaits; both carry out the flows of ``relayq.flows``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import BinaryIO, Final, Self, Unpack

import httpx

from relayq import flows
from relayq.download import Download
from relayq.events import Event, EventFeed
from relayq.exchange import Patience
from relayq.flows import SubmitOptions
from relayq.job import Job, Model, Pipeline, ResultFacts, place_of
from relayq.session import AsyncSession, Session
from relayq.upload import AsyncSource, Source

DEFAULT_URL: Final = "http://127.0.0.1:8080"
PAGE_LIMIT: Final = 100


def _page_query(service_type: str | None, model: str | None, status: str | None, page_size: int) -> dict[str, str]:
    given = {"service_type": service_type, "model": model, "status": status, "limit": str(page_size)}
    return {name: value for name, value in given.items() if value is not None}


def _headers(api_key: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
    return {**({"authorization": f"Bearer {api_key}"} if api_key else {}), **(headers or {})}


class Client:
    """Blocking client. ``with Client() as client: job = client.submit("talk.wav", service_type="transcription")``.

    Calls are repeated for ``patience_seconds`` while the server is away or says 429 or 503, not before its
    ``Retry-After``. Submissions too: each has an Idempotency-Key, its own or a new one, so there is one job however
    often it is sent. One of an iterator, whose bytes are gone, only when no connection could be made. Errors:
    ``relayq.errors``.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = 60,
        patience_seconds: float = 30,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._session = Session(
            url, headers=_headers(api_key, headers), timeout_seconds=timeout_seconds, transport=transport
        )
        self._patience = Patience(patience_seconds)

    def submit(
        self,
        file: Source,
        *,
        service_type: str | None = None,
        pipeline: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Job:
        """Send a path, bytes, binary file or iterator of bytes as a job, or as a pipeline's run.

        Memory does not grow with its size.

        Raises:
            Refused, NotReachable: there is no job.
            OutcomeUnknown: there may be one; sending the same with its ``idempotency_key`` is safe.
            SourceChanged, OSError: the file could not be sent.
        """
        return self._session.run(flows.submit(file, place_of(service_type, pipeline), self._patience, options))

    def status(self, job_id: str, *, service_type: str | None = None, pipeline: str | None = None) -> Job:
        """The status document; without ``service_type`` or ``pipeline`` all of the server's are tried one by one."""
        return self._session.run(flows.status(job_id, place_of(service_type, pipeline), self._patience))

    def wait(
        self,
        job_id: str,
        *,
        service_type: str | None = None,
        pipeline: str | None = None,
        timeout_seconds: float | None = None,
        on_change: Callable[[Job], None] | None = None,
    ) -> Job:
        """The status document with a verdict, by long polls; ``on_change`` sees each document on the way.

        Raises:
            WaitTimeout: no verdict within ``timeout_seconds``; carries the last document.
        """
        return self._session.run(
            flows.wait(job_id, place_of(service_type, pipeline), timeout_seconds, self._patience, on_change)
        )

    def result(
        self, job_id: str, output: BinaryIO | Download, *, service_type: str | None = None, pipeline: str | None = None
    ) -> ResultFacts:
        """Write the result's bytes; a broken download goes on where it stopped, and the SHA-256 is checked.

        Raises:
            Conflict: no verdict yet.
            NotFound: the job has no result.
            UnexpectedAnswer: the bytes are not those that the status document announces.
        """
        download = output if isinstance(output, Download) else Download(output)
        return self._session.run(flows.result(job_id, place_of(service_type, pipeline), download, self._patience))

    def events(
        self, job_id: str, *, service_type: str | None = None, pipeline: str | None = None, last_event_id: str = ""
    ) -> Iterator[Event]:
        """The job's changes as they happen, up to ``done``; a broken stream goes on where it stopped.

        Raises:
            Gone, NotFound: the job, or its retention, is over.
        """
        path = self._session.run(flows.events_path(job_id, place_of(service_type, pipeline), self._patience))
        yield from self._session.events(EventFeed(path, self._patience, last_event_id))

    def cancel(self, job_id: str, *, service_type: str | None = None, pipeline: str | None = None) -> Job:
        """Cancel; a running job ends soon after (``cancel_requested``).

        Raises:
            Conflict: another verdict was reached.
        """
        return self._session.run(flows.cancel(job_id, place_of(service_type, pipeline), self._patience))

    def jobs(
        self,
        *,
        service_type: str | None = None,
        model: str | None = None,
        status: str | None = None,
        page_size: int = PAGE_LIMIT,
    ) -> Iterator[Job]:
        """All jobs, newest first, fetched page by page."""
        query = _page_query(service_type, model, status, page_size)
        while True:
            page = self._session.run(flows.jobs(query, self._patience))
            yield from page.jobs
            if not page.cursor:
                return
            query["cursor"] = page.cursor

    def models(self) -> list[Model]:
        """What the server offers."""
        return self._session.run(flows.offer(self._patience))[0]

    def pipelines(self) -> list[Pipeline]:
        """The server's pipelines, with their stages."""
        return self._session.run(flows.offer(self._patience))[1]

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient:
    """The same calls, awaited; ``submit`` takes asynchronous iterators too. Runs on asyncio and trio."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = 60,
        patience_seconds: float = 30,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._session = AsyncSession(
            url, headers=_headers(api_key, headers), timeout_seconds=timeout_seconds, transport=transport
        )
        self._patience = Patience(patience_seconds)

    async def submit(
        self,
        file: AsyncSource,
        *,
        service_type: str | None = None,
        pipeline: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Job:
        """See ``Client.submit``."""
        return await self._session.run(flows.submit(file, place_of(service_type, pipeline), self._patience, options))

    async def status(self, job_id: str, *, service_type: str | None = None, pipeline: str | None = None) -> Job:
        """See ``Client.status``."""
        return await self._session.run(flows.status(job_id, place_of(service_type, pipeline), self._patience))

    async def wait(
        self,
        job_id: str,
        *,
        service_type: str | None = None,
        pipeline: str | None = None,
        timeout_seconds: float | None = None,
        on_change: Callable[[Job], None] | None = None,
    ) -> Job:
        """See ``Client.wait``."""
        return await self._session.run(
            flows.wait(job_id, place_of(service_type, pipeline), timeout_seconds, self._patience, on_change)
        )

    async def result(
        self, job_id: str, output: BinaryIO | Download, *, service_type: str | None = None, pipeline: str | None = None
    ) -> ResultFacts:
        """See ``Client.result``."""
        download = output if isinstance(output, Download) else Download(output)
        return await self._session.run(flows.result(job_id, place_of(service_type, pipeline), download, self._patience))

    async def events(
        self, job_id: str, *, service_type: str | None = None, pipeline: str | None = None, last_event_id: str = ""
    ) -> AsyncIterator[Event]:
        """See ``Client.events``."""
        path = await self._session.run(flows.events_path(job_id, place_of(service_type, pipeline), self._patience))
        async with aclosing(self._session.events(EventFeed(path, self._patience, last_event_id))) as events:
            async for event in events:
                yield event

    async def cancel(self, job_id: str, *, service_type: str | None = None, pipeline: str | None = None) -> Job:
        """See ``Client.cancel``."""
        return await self._session.run(flows.cancel(job_id, place_of(service_type, pipeline), self._patience))

    async def jobs(
        self,
        *,
        service_type: str | None = None,
        model: str | None = None,
        status: str | None = None,
        page_size: int = PAGE_LIMIT,
    ) -> AsyncIterator[Job]:
        """See ``Client.jobs``."""
        query = _page_query(service_type, model, status, page_size)
        while True:
            page = await self._session.run(flows.jobs(query, self._patience))
            for job in page.jobs:
                yield job
            if not page.cursor:
                return
            query["cursor"] = page.cursor

    async def models(self) -> list[Model]:
        """See ``Client.models``."""
        return (await self._session.run(flows.offer(self._patience)))[0]

    async def pipelines(self) -> list[Pipeline]:
        """See ``Client.pipelines``."""
        return (await self._session.run(flows.offer(self._patience)))[1]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._session.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
