"""The result: bytes, ranges, conditions, and what is answered when there is none."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from gateway_stack import MakeStack, Stack

from queuecore.broker import Failure, Result
from queuecore.errors import BlobCorrupt, BlobUnavailable
from queuecore.job import result_key
from queuecore.testing.blobs import MemoryStore

pytestmark = pytest.mark.anyio

CONTENT = bytes(range(256)) * 1000


async def finished(stack: Stack, content: bytes = CONTENT, content_type: str = "text/html", name: str = "a.wav") -> str:
    response = await stack.client.post("/jobs/echo?model=large", files={"file": (name, b"x")})
    await stack.complete(await stack.claim("large"), content, content_type)
    return response.headers["location"] + "/result"


async def test_result_comes_whole_with_its_type_etag_and_a_safe_name(stack: Stack) -> None:
    url = await finished(stack)
    first, second = await stack.client.get(url), await stack.client.get(url)

    assert first.content == second.content == CONTENT
    assert first.status_code == 200
    assert first.headers["content-type"] == "text/html"
    assert first.headers["etag"] == f'"{hashlib.sha256(CONTENT).hexdigest()}"'
    assert first.headers["content-length"] == str(len(CONTENT))
    assert first.headers["content-disposition"] == 'attachment; filename="a.html"'
    assert first.headers["accept-ranges"] == "bytes"
    assert first.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in first.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1), ("bytes=5-9", 5, 10), ("bytes=100000-", 100_000, 256_000), ("bytes=-1", 255_999, 256_000),
        ("bytes=-300000", 0, 256_000), ("bytes=255999-999999999", 255_999, 256_000), ("bytes=0-", 0, 256_000),
        ("bytes = 7-8", 7, 9),
    ],
)  # fmt: skip
async def test_one_range_is_206(stack: Stack, asked: str, start: int, end: int) -> None:
    response = await stack.client.get(await finished(stack), headers={"range": asked})

    assert response.status_code == 206
    assert response.content == CONTENT[start:end]
    assert response.headers["content-range"] == f"bytes {start}-{end - 1}/256000"
    assert response.headers["content-length"] == str(end - start)


@pytest.mark.parametrize("asked", ["bytes=256000-", "bytes=999999-9999999", "bytes=-0"])
async def test_range_outside_is_416_and_says_the_size(stack: Stack, asked: str) -> None:
    response = await stack.client.get(await finished(stack), headers={"range": asked})

    assert (response.status_code, response.json()["code"]) == (416, "range_not_satisfiable")
    assert response.headers["content-range"] == "bytes */256000"


@pytest.mark.parametrize("asked", ["bytes=0-1,5-6", "bytes=9-5", "items=0-1", "bytes=-", "bytes=a-b", "bytes=0-1x", ""])
async def test_range_that_is_not_understood_gives_the_whole(stack: Stack, asked: str) -> None:
    response = await stack.client.get(await finished(stack), headers={"range": asked})

    assert (response.status_code, len(response.content)) == (200, len(CONTENT))


async def test_conditions_are_honoured(stack: Stack) -> None:
    url = await finished(stack)
    etag = (await stack.client.head(url)).headers["etag"]
    ranged = {"range": "bytes=0-1"}

    unchanged = await stack.client.get(url, headers={"if-none-match": etag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert (await stack.client.get(url, headers={**ranged, "if-range": etag})).status_code == 206
    assert (await stack.client.get(url, headers={**ranged, "if-range": '"other"'})).status_code == 200
    assert (await stack.client.get(url, headers={**ranged, "if-range": f"W/{etag}"})).status_code == 200


async def test_head_tells_the_same_without_a_byte(stack: Stack) -> None:
    url = await finished(stack)
    got, head = await stack.client.get(url), await stack.client.head(url)

    assert head.content == b""
    assert dict(head.headers) == dict(got.headers)
    ranged = await stack.client.head(url, headers={"range": "bytes=0-1"})
    assert (ranged.status_code, ranged.headers["content-length"]) == (206, "2")


async def test_empty_result_is_200_with_no_bytes(stack: Stack) -> None:
    url = await finished(stack, b"")

    assert (await stack.client.get(url)).content == b""
    assert (await stack.client.get(url, headers={"range": "bytes=0-"})).status_code == 416


async def test_name_in_other_letters_is_sent_in_both_forms(stack: Stack) -> None:
    response = await stack.client.get(await finished(stack, name="Запись.wav", content_type="application/json"))

    assert response.headers["content-disposition"] == (
        "attachment; filename=\"______.json\"; filename*=UTF-8''%D0%97%D0%B0%D0%BF%D0%B8%D1%81%D1%8C.json"
    )


@pytest.mark.parametrize("content_type", ["text/html\r\nX-Injected: 1", "nonsense", "\u0436/x", ""])
async def test_type_that_a_model_made_up_reaches_no_header(stack: Stack, content_type: str) -> None:
    response = await stack.client.get(await finished(stack, b"1", content_type))

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/octet-stream"
    assert "x-injected" not in response.headers


async def test_no_result_yet_is_409_and_none_at_all_is_404(stack: Stack) -> None:
    url = (await stack.client.post("/jobs/echo?model=large", content=b"x")).headers["location"]
    early = await stack.client.get(f"{url}/result")
    _ = await stack.brokers["large"].fail(await stack.claim("large"), Failure("inference_error", "no"))
    late = await stack.client.get(f"{url}/result")

    assert (early.status_code, early.json()["code"], early.headers["retry-after"]) == (409, "not_finished", "1")
    assert (late.status_code, late.json()["code"]) == (404, "no_result")


class BreakingStore(MemoryStore):
    """Raises ``fault`` after ``good`` chunks of every object."""

    good = 0
    fault: Exception | None = None

    def get(
        self, key: str, *, offset: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._get(key, offset, length)

    @asynccontextmanager
    async def _get(self, key: str, offset: int, length: int | None) -> AsyncGenerator[AsyncIterator[bytes], None]:
        async with super().get(key, offset=offset, length=length) as chunks:
            yield self._breaking(chunks)

    async def _breaking(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        given = 0
        async for chunk in chunks:
            if self.fault is not None and given == self.good:
                raise self.fault
            given += 1
            yield chunk


async def test_object_that_cannot_be_read_is_said_before_a_byte_is_sent(make_stack: MakeStack) -> None:
    store = BreakingStore()
    stack = await make_stack(store=store)
    url = await finished(stack)

    for fault, status, code in (
        (BlobUnavailable("k", "s3.internal"), 503, "storage_unavailable"),
        (BlobCorrupt("k", "tag"), 500, "blob_corrupt"),
    ):
        store.fault = fault
        response = await stack.client.get(url)
        assert (response.status_code, response.json()["code"]) == (status, code)
        assert "internal" not in response.json()["detail"]
    store.fault = None
    for key in list(store.objects):
        del store.objects[key]
    missing = await stack.client.get(url)
    assert (missing.status_code, missing.json()["code"]) == (404, "blob_not_found")


async def test_result_of_unknown_size_and_digest_is_served_too(stack: Stack) -> None:
    url = (await stack.client.post("/jobs/echo?model=large", content=b"x")).headers["location"]
    claim = await stack.claim("large")
    key = result_key(claim.job_id, claim.fence, claim.claim_id)
    stack.objects[key] = b"foreign"
    _ = await stack.brokers["large"].complete(claim, Result(key, 7, "", ""))

    response = await stack.client.get(f"{url}/result")

    assert (response.status_code, response.content) == (200, b"foreign")
    assert "etag" not in response.headers
