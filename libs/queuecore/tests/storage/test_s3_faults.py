"""Each answer of an S3 server (tests/data/s3, and their kinds) and what becomes of the call."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest

from queuecore.blobs import BlobStore
from queuecore.errors import BlobNotFound, BlobUnavailable
from queuecore.retry import Backoff
from queuecore.storage import multipart, s3_client
from queuecore.storage.multipart import FIRST_PART_BYTES
from queuecore.storage.s3 import S3Connection, S3Store
from queuecore.storage.s3_target import Patience, S3Target
from queuecore.testing.s3_stub import MIN_PART_BYTES, PlannedFault, S3Stub, StubAnswer

pytestmark = pytest.mark.anyio

MIB = 1 << 20
DATA = Path(__file__).parents[1] / "data" / "s3"
CASES: list[dict[str, Any]] = json.loads((DATA / "index.json").read_text("utf-8"))
KEY = "job/input"
LARGE = 2 * FIRST_PART_BYTES + 5
RESET = PlannedFault(None)
LOST_REPLY = PlannedFault(None, after=True)


class Unlucky(Exception):
    """Raised by a stream in the middle."""


async def stream(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 65_536):
        yield content[start : start + 65_536]


async def breaking(content: bytes) -> AsyncIterator[bytes]:
    async for piece in stream(content):
        yield piece
    raise Unlucky


async def read(store: BlobStore, key: str = KEY, *, offset: int = 0, length: int | None = None) -> bytes:
    async with store.get(key, offset=offset, length=length) as chunks:
        return b"".join([chunk async for chunk in chunks])


def case(name: str) -> PlannedFault:
    found = next(entry for entry in CASES if entry["name"].startswith(name))
    return PlannedFault(StubAnswer(found["status"], (DATA / f"{found['name']}.xml").read_bytes()))


def error(status: int, code: str, message: str = "as planned") -> PlannedFault:
    return PlannedFault(StubAnswer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()))


@pytest.fixture
async def stub() -> AsyncIterator[S3Stub]:
    async with S3Stub() as server:
        yield server


@pytest.fixture
async def store(stub: S3Stub) -> AsyncIterator[S3Store]:
    made = make(stub)
    yield made
    await made.aclose()


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client, "_BACKOFF", Backoff(0.001, 0.001))


def make(stub: S3Stub, checksums: str = "when_required") -> S3Store:
    target = S3Target("bucket", stub.url, "auto", checksums)
    return S3Store(S3Connection(target), "pre/fix", patience=Patience(seconds=0, attempts=4))


# -- what is sent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 5_242_879, 5_242_880, 5_242_881, 10_485_760, 10_485_761, LARGE])
async def test_parts_keep_the_rules_at_every_size(store: S3Store, stub: S3Stub, size: int) -> None:
    content = os.urandom(size)
    assert await store.put(KEY, stream(content)) == size
    assert stub.objects == {"pre/fix/job/input": content}
    assert stub.count("PutObject") == (1 if size < FIRST_PART_BYTES else 0)
    uploads = [request for request in stub.requests if request.operation == "UploadPart"]
    parts = {request.query["partNumber"]: len(request.body) for request in uploads}
    _ = parts.pop(str(max(map(int, parts), default=0)), None)
    assert all(part >= MIN_PART_BYTES for part in parts.values())
    assert await read(store) == content


async def test_by_default_nothing_is_sent_that_only_newer_servers_take(store: S3Store, stub: S3Stub) -> None:
    stub.refuses_checksums = True
    _ = await store.put(KEY, stream(b"small"))
    _ = await store.put(KEY, stream(bytes(LARGE)))
    _ = await read(store)
    _ = await read(store, offset=5, length=5)
    _ = await store.size(KEY)
    _ = [entry async for entry in store.scan()]
    _ = await store.abort_unfinished(older_than_seconds=0)
    await store.check()
    assert not [request for request in stub.requests if request.has_checksum]
    assert all("content-length" in request.headers for request in stub.requests if request.operation.startswith("Put"))
    assert not [request for request in stub.requests if "expect" in request.headers]
    assert "chunked" not in {request.headers.get("transfer-encoding") for request in stub.requests}


async def test_checksums_can_be_switched_on_and_a_server_that_refuses_them_is_named_by_the_check(stub: S3Stub) -> None:
    store = make(stub, checksums="when_supported")
    await store.check()
    assert any(request.has_checksum for request in stub.requests)
    stub.refuses_checksums = True
    with pytest.raises(BlobUnavailable, match="S3_CHECKSUMS"):
        await store.check()
    await store.aclose()


async def test_three_parts_are_on_their_way_while_the_next_is_made(store: S3Store, stub: S3Stub) -> None:
    produced = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal produced
        for _ in range(8):
            yield bytes(FIRST_PART_BYTES)
            produced += 1

    release = stub.hold("UploadPart")
    task = asyncio.create_task(store.put(KEY, counted()))
    await stub.held(3)
    for _ in range(50):
        await asyncio.sleep(0)
    assert stub.waiting == 3
    assert produced == 3  # the fourth part is made; nobody asked for a fifth
    release()
    assert await task == 8 * FIRST_PART_BYTES


# -- the cases --------------------------------------------------------------------------------------------------------


async def test_s01_an_error_inside_a_200_is_a_failure_and_is_retried(store: S3Store, stub: S3Stub) -> None:
    stub.plan("CompleteMultipartUpload", case("s01"))
    content = os.urandom(LARGE)
    _ = await store.put(KEY, stream(content))
    assert stub.count("CompleteMultipartUpload") == 2
    assert await read(store) == content


async def test_s01_for_ever_is_unavailable_and_leaves_nothing(store: S3Store, stub: S3Stub) -> None:
    stub.plan_always("CompleteMultipartUpload", case("s01"))
    with pytest.raises(BlobUnavailable, match="InternalError"):
        _ = await store.put(KEY, stream(bytes(LARGE)))
    assert (stub.objects, stub.uploads) == ({}, {})


@pytest.mark.parametrize("first", [LOST_REPLY, PlannedFault(case("s01").answer, after=True)], ids=["reset", "s01"])
async def test_s02_a_repeated_complete_that_finds_no_upload_looks_for_the_object(
    store: S3Store, stub: S3Stub, first: PlannedFault
) -> None:
    stub.plan("CompleteMultipartUpload", first, case("s02"))
    content = os.urandom(LARGE)
    assert await store.put(KEY, stream(content)) == LARGE
    assert stub.count("HeadObject") == 1
    assert await read(store) == content


@pytest.mark.parametrize("there", [None, b"other size"])
async def test_s02_without_our_object_is_a_failure(store: S3Store, stub: S3Stub, there: bytes | None) -> None:
    if there is not None:
        stub.objects["pre/fix/job/input"] = there
    stub.plan("CompleteMultipartUpload", RESET, case("s02"))
    with pytest.raises(BlobUnavailable, match="NoSuchUpload"):
        _ = await store.put(KEY, stream(bytes(LARGE)))
    assert stub.objects.get("pre/fix/job/input") == there


async def test_s02_at_the_first_complete_is_a_failure_even_if_an_older_object_has_the_size(
    store: S3Store, stub: S3Stub
) -> None:
    stub.objects["pre/fix/job/input"] = bytes(LARGE)
    stub.plan("CompleteMultipartUpload", case("s02"))
    with pytest.raises(BlobUnavailable, match="NoSuchUpload"):
        _ = await store.put(KEY, stream(bytes(LARGE)))


@pytest.mark.parametrize("fault", [case("s04"), RESET, LOST_REPLY, error(500, "InternalError"), error(429, "")])
async def test_s04_every_call_outlives_passing_faults_and_sends_the_same_bytes(
    store: S3Store, stub: S3Stub, fault: PlannedFault
) -> None:
    content = os.urandom(LARGE)
    for operation in ("PutObject", "UploadPart", "GetObject", "HeadObject", "DeleteObject", "ListObjectsV2"):
        stub.plan(operation, fault, fault)
    stub.plan("UploadPart", fault, fault)
    _ = await store.put(KEY, stream(content))
    _ = await store.put("job/small", stream(b"small"))
    assert await read(store) == content
    assert await read(store, "job/small") == b"small"
    assert await store.size(KEY) == LARGE
    assert [entry.key async for entry in store.scan()] == [KEY, "job/small"]
    await store.delete(KEY)
    assert stub.objects == {"pre/fix/job/small": b"small"}
    assert stub.uploads == {}


async def test_s04_for_ever_is_unavailable(store: S3Store, stub: S3Stub) -> None:
    stub.plan_always("any", case("s04"))
    with pytest.raises(BlobUnavailable, match=r"503 SlowDown .*overloaded"):
        _ = await store.put(KEY, stream(b"x"))
    with pytest.raises(BlobUnavailable):
        _ = await read(store)
    assert stub.count("PutObject") == 4


async def test_s06_a_skewed_clock_is_asked_again_with_a_fresh_signature(store: S3Store, stub: S3Stub) -> None:
    stub.plan("any", case("s06"))
    _ = await store.put(KEY, stream(b"x"))
    assert await read(store) == b"x"


async def test_s06_for_ever_names_the_clock_and_is_not_the_jobs_fault(store: S3Store, stub: S3Stub) -> None:
    stub.plan_always("any", case("s06"))
    with pytest.raises(BlobUnavailable, match="clock"):
        _ = await store.put(KEY, stream(b"x"))
    with pytest.raises(BlobUnavailable, match="clock"):
        _ = await read(store)


@pytest.mark.parametrize(
    ("name", "operation", "text"),
    [
        ("s07", "CompleteMultipartUpload", "rules for multipart"),
        ("s09", "PutObject", "S3_CHECKSUMS"),
        ("s11", "PutObject", "Content-Length"),
        ("s12", "PutObject", "S3_CHECKSUMS"),
    ],
)
async def test_s07_s09_s11_s12_are_avoided_and_if_they_come_all_the_same_say_what_to_mend(
    store: S3Store, stub: S3Stub, name: str, operation: str, text: str
) -> None:
    stub.plan_always(operation, case(name))
    with pytest.raises(BlobUnavailable, match=text):
        _ = await store.put(KEY, stream(bytes(LARGE if operation.startswith("Complete") else 1)))
    assert stub.count(operation) == 1
    assert (stub.objects, stub.uploads) == ({}, {})


async def test_s14_expired_credentials_are_read_again(
    stub: S3Stub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "credentials"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    write_credentials(file, "OLD")
    store = make(stub)
    _ = await store.put(KEY, stream(b"x"))
    write_credentials(file, "NEW")
    stub.plan("any", case("s14"))
    assert await read(store) == b"x"
    assert "Credential=OLD/" in stub.requests[-2].headers["authorization"]
    assert "Credential=NEW/" in stub.requests[-1].headers["authorization"]
    assert stub.requests[-1].headers["x-amz-security-token"] == "token-of-NEW"
    await store.aclose()


def write_credentials(file: Path, name: str) -> None:
    lines = f"aws_access_key_id={name}\naws_secret_access_key=s\naws_session_token=token-of-{name}"
    _ = file.write_text(f"[default]\n{lines}\n", "utf-8")


async def test_s14_for_ever_names_the_credentials(store: S3Store, stub: S3Stub) -> None:
    stub.plan_always("any", case("s14"))
    with pytest.raises(BlobUnavailable, match="credentials have expired"):
        _ = await read(store)
    assert stub.count("GetObject") == 3


async def test_s16_an_abort_that_fails_once_is_retried(store: S3Store, stub: S3Stub) -> None:
    stub.plan("AbortMultipartUpload", case("s16"))
    with pytest.raises(Unlucky):
        _ = await store.put(KEY, breaking(bytes(LARGE)))
    assert stub.uploads == {}


async def test_s16_an_abort_that_always_fails_hides_no_error_and_is_left_to_the_sweep(
    store: S3Store, stub: S3Stub, caplog: pytest.LogCaptureFixture
) -> None:
    stub.plan_always("AbortMultipartUpload", case("s16"))
    with pytest.raises(Unlucky):
        _ = await store.put(KEY, breaking(bytes(LARGE)))
    assert "left to the sweep" in caplog.text
    assert len(stub.uploads) == 1
    stub.plan_never("AbortMultipartUpload")
    assert await store.abort_unfinished(older_than_seconds=0) == 1
    assert stub.uploads == {}


def test_every_case_of_the_index_is_tested_here() -> None:
    tested = {name for name in globals() if name.startswith("test_s")}
    assert {entry["name"][:3] for entry in CASES} <= {part for name in tested for part in name.split("_")}


# -- their kinds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (403, "AccessDenied", "s3:PutObject"),
        (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
        (404, "NoSuchBucket", "there is no bucket bucket; check BLOBS_URL"),
        (400, "AuthorizationHeaderMalformed", "AWS_REGION"),
        (403, "QuotaExceeded", "full"),
        (507, "", "full"),
        (501, "", "S3_ADDRESSING_STYLE"),
        (418, "Teapot", "refuses the request"),
    ],
)
async def test_an_operators_error_is_said_once_and_at_once(
    store: S3Store, stub: S3Stub, status: int, code: str, text: str
) -> None:
    stub.plan_always("any", error(status, code))
    with pytest.raises(BlobUnavailable, match=text):
        _ = await store.put(KEY, stream(b"x"))
    assert stub.count("PutObject") == 1
    with pytest.raises(BlobUnavailable, match=text):
        _ = await read(store)
    with pytest.raises(BlobUnavailable, match=text):
        await store.check()


async def test_a_missing_bucket_is_not_a_missing_object(store: S3Store, stub: S3Stub) -> None:
    with pytest.raises(BlobNotFound):
        _ = await store.size(KEY)
    stub.plan_always("any", error(404, "NoSuchBucket"))
    with pytest.raises(BlobUnavailable, match="there is no bucket"):
        _ = await store.size(KEY)
    with pytest.raises(BlobUnavailable, match="there is no bucket"):
        _ = await read(store)


async def test_a_store_that_hides_missing_objects_fails_its_check(store: S3Store, stub: S3Stub) -> None:
    """Without s3:ListBucket, S3 answers 403 for an object that is not there: jobs would be retried for ever."""
    stub.plan("HeadObject", error(403, ""))
    with pytest.raises(BlobUnavailable, match="s3:ListBucket"):
        await store.check()
    assert stub.objects == {}


async def test_a_refusal_before_the_body_is_understood(store: S3Store, stub: S3Stub) -> None:
    early = error(403, "AccessDenied")._replace(early=True)
    stub.plan_always("PutObject", early)
    with pytest.raises(BlobUnavailable, match="access denied"):
        _ = await store.put(KEY, stream(bytes(4 * MIB)))
    stub.plan_always("UploadPart", early)
    with pytest.raises(BlobUnavailable, match="access denied"):
        _ = await store.put(KEY, stream(bytes(LARGE)))
    assert stub.uploads == {}


async def test_nobody_listening_names_the_endpoint(stub: S3Stub, store: S3Store) -> None:
    await stub.stop()
    with pytest.raises(BlobUnavailable, match="S3_ENDPOINT_URL"):
        _ = await store.put(KEY, stream(b"x"))
    with pytest.raises(BlobUnavailable, match="S3_ENDPOINT_URL"):
        await store.check()


async def test_no_credentials_are_named(stub: S3Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = make(stub)
    with pytest.raises(BlobUnavailable, match="no AWS credentials"):
        await store.check()
    await store.aclose()


async def test_an_answer_that_is_no_xml_is_no_success(store: S3Store, stub: S3Stub) -> None:
    stub.plan_always("any", PlannedFault(StubAnswer(502, b"<html>bad gateway</html>")))
    with pytest.raises(BlobUnavailable, match="502"):
        _ = await read(store)
    stub.plan_always("any", PlannedFault(StubAnswer(200, b"<html>welcome</html>")))
    for size in (5, LARGE):
        with pytest.raises(BlobUnavailable, match="S3_ENDPOINT_URL"):
            _ = await store.put(KEY, stream(bytes(size)))


async def test_a_message_of_the_server_is_bounded_and_harmless(store: S3Store, stub: S3Stub) -> None:
    stub.plan_always("any", error(400, "Odd", "line\nbreak \x1b[31m" + "x" * 5000))
    with pytest.raises(BlobUnavailable) as caught:
        _ = await store.size(KEY)
    with pytest.raises(BlobUnavailable) as caught:
        _ = await read(store)
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


async def test_a_profile_that_does_not_exist_is_named(stub: S3Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    store = make(stub)
    with pytest.raises(BlobUnavailable, match=r"cannot start.*nobody"):
        await store.connect()
    await store.aclose()


@pytest.mark.parametrize(
    ("error", "text", "again"),
    [
        (botocore.exceptions.CredentialRetrievalError(provider="p", error_msg="e"), "credentials cannot be read", True),
        (botocore.exceptions.SSLError(endpoint_url="https://s3", error="self-signed"), "AWS_CA_BUNDLE", True),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="https://s3"), "broke", True),
        (botocore.exceptions.ParamValidationError(report="Key"), "refuses the call", False),
    ],
)
def test_what_no_server_here_can_cause_is_named_too(
    error: botocore.exceptions.BotoCoreError, text: str, *, again: bool
) -> None:
    fault = s3_client._transport_fault(KEY, error)
    assert text in str(fault)
    assert (fault.remedy == "retry") == again


async def test_callers_at_once_share_one_client(store: S3Store, stub: S3Stub) -> None:
    _ = await asyncio.gather(*(store.put(f"job-{number}/input", stream(b"x")) for number in range(5)))
    assert len(stub.objects) == 5
    clients = {id(await store._connection.client()) for _ in range(2)}
    assert len(clients) == 1


# -- bodies -----------------------------------------------------------------------------------------------------------


async def test_a_body_that_breaks_is_resumed_at_its_byte(store: S3Store, stub: S3Stub) -> None:
    content = os.urandom(4 * MIB)
    _ = await store.put(KEY, stream(content))
    stub.cut_bytes = MIB
    assert await read(store) == content
    assert [request.headers.get("range") for request in stub.requests if request.operation == "GetObject"] == [
        None, f"bytes={MIB}-{4 * MIB - 1}", f"bytes={2 * MIB}-{4 * MIB - 1}", f"bytes={3 * MIB}-{4 * MIB - 1}",
    ]  # fmt: skip
    assert await read(store, offset=5, length=2 * MIB) == content[5 : 5 + 2 * MIB]


async def test_a_body_that_is_always_cut_short_raises(store: S3Store, stub: S3Stub) -> None:
    _ = await store.put(KEY, stream(bytes(4 * MIB)))
    for cut_bytes in (0, 1000):
        stub.cut_bytes = cut_bytes
        with pytest.raises(BlobUnavailable, match="broke"):
            _ = await read(store)


async def test_an_answer_without_a_length_is_refused(store: S3Store, stub: S3Stub) -> None:
    stub.plan_always("GetObject", PlannedFault(StubAnswer(200, b"x", length=False)))
    with pytest.raises(BlobUnavailable, match="no ContentLength"):
        _ = await read(store)


async def test_with_checksums_on_damaged_bytes_are_noticed(stub: S3Stub) -> None:
    store = make(stub, checksums="when_supported")
    wrong = (("x-amz-checksum-crc32", "AAAAAA=="),)
    stub.plan_always("GetObject", PlannedFault(StubAnswer(200, b"content", wrong)))
    with pytest.raises(BlobUnavailable, match="damaged"):
        _ = await read(store)
    await store.aclose()


async def test_bytes_of_two_objects_are_never_joined(store: S3Store, stub: S3Stub) -> None:
    _ = await store.put(KEY, stream(b"a" * 4 * MIB))
    stub.cut_bytes = MIB
    with pytest.raises(BlobUnavailable, match="replaced while it was read"):  # noqa: PT012  the reading is what raises
        async with store.get(KEY) as chunks:
            _ = await anext(chunks)
            stub.objects["pre/fix/job/input"] = b"b" * 4 * MIB
            _ = [chunk async for chunk in chunks]


async def test_an_object_deleted_while_it_is_read_and_broken_is_reported(store: S3Store, stub: S3Stub) -> None:
    _ = await store.put(KEY, stream(b"a" * 4 * MIB))
    stub.cut_bytes = MIB
    with pytest.raises(BlobNotFound):  # noqa: PT012  the reading is what raises
        async with store.get(KEY) as chunks:
            _ = await anext(chunks)
            stub.objects.clear()
            _ = [chunk async for chunk in chunks]


@pytest.mark.parametrize("where", [(), (("Content-Range", "bytes 3-9/10"),), (("Content-Range", "nonsense"),)])
async def test_a_server_that_gives_another_range_is_refused(
    store: S3Store, stub: S3Stub, where: tuple[tuple[str, str], ...]
) -> None:
    stub.plan_always("GetObject", PlannedFault(StubAnswer(206, b"0123456789", where)))
    with pytest.raises(BlobUnavailable, match="range"):
        _ = await read(store, offset=2, length=5)


async def test_a_reader_that_leaves_gives_its_connection_back(store: S3Store, stub: S3Stub) -> None:
    _ = await store.put(KEY, stream(bytes(4 * MIB)))
    for _ in range(20):
        async with store.get(KEY) as chunks:
            _ = await anext(chunks)
    await stub.settled(1)


# -- ends -------------------------------------------------------------------------------------------------------------


async def test_a_failed_part_ends_the_others_and_the_upload(
    store: S3Store, stub: S3Stub, caplog: pytest.LogCaptureFixture
) -> None:
    stub.plan("UploadPart", error(403, "AccessDenied"))
    with pytest.raises(BlobUnavailable, match="access denied"):
        _ = await store.put(KEY, stream(bytes(5 * FIRST_PART_BYTES)))
    assert (stub.objects, stub.uploads) == ({}, {})
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_an_upload_that_somebody_else_aborted_is_no_second_error(store: S3Store, stub: S3Stub) -> None:
    async def aborted() -> AsyncIterator[bytes]:
        async for piece in breaking(bytes(LARGE)):
            stub.uploads.clear()
            yield piece

    with pytest.raises((Unlucky, BlobUnavailable)):
        _ = await store.put(KEY, aborted())


async def test_cancelling_while_the_upload_is_being_opened_still_aborts_it(store: S3Store, stub: S3Stub) -> None:
    release = stub.hold("CreateMultipartUpload")
    task = asyncio.create_task(store.put(KEY, stream(bytes(LARGE))))
    await stub.held(1)
    _ = task.cancel()
    await asyncio.sleep(0)
    release()
    with pytest.raises(asyncio.CancelledError):
        _ = await task
    assert stub.count("AbortMultipartUpload") == 1
    assert stub.uploads == {}


async def test_cancelling_while_parts_are_on_their_way_aborts_the_upload(
    store: S3Store, stub: S3Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multipart, "_LAST_PARTS_SECONDS", 0.05)
    _ = stub.hold("UploadPart")
    task = asyncio.create_task(store.put(KEY, stream(bytes(LARGE))))
    await stub.held(3)
    _ = task.cancel()
    with pytest.raises(asyncio.CancelledError):
        _ = await task
    assert stub.uploads == {}


async def test_parts_that_the_server_has_taken_end_before_the_upload_is_aborted(store: S3Store, stub: S3Stub) -> None:
    """S3 may store such a part after the abort, and the upload would be there again."""
    release = stub.hold("UploadPart")
    task = asyncio.create_task(store.put(KEY, stream(bytes(5 * FIRST_PART_BYTES))))
    await stub.held(3)
    _ = task.cancel()
    _ = await asyncio.wait([task], timeout=0.1)
    assert stub.count("AbortMultipartUpload") == 0
    release()
    with pytest.raises(asyncio.CancelledError):
        _ = await task
    assert [request.operation for request in stub.requests[-4:]] == [*["UploadPart"] * 3, "AbortMultipartUpload"]
    assert stub.uploads == {}


async def test_only_uploads_of_our_prefix_that_stand_still_are_aborted(
    stub: S3Stub, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(store._unfinished, "_clock", lambda: now)
    stub.uploads = {
        "dead": ("pre/fix/a", {1: b"x"}),
        "living": ("pre/fix/b", {1: b"x"}),
        "foreign": ("pre/fixture/c", {}),
    }
    stub.parts_a_page = 1
    assert await store.abort_unfinished(older_than_seconds=60) == 0
    now = 59.0
    stub.uploads["living"][1][2] = b"y"
    assert await store.abort_unfinished(older_than_seconds=60) == 0
    now = 60.0
    assert await store.abort_unfinished(older_than_seconds=60) == 1
    assert set(stub.uploads) == {"living", "foreign"}


async def test_a_closed_store_says_so(store: S3Store) -> None:
    _ = await store.put(KEY, stream(b"x"))
    await store.aclose()
    await store.aclose()
    with pytest.raises(BlobUnavailable, match="closed"):
        _ = await read(store)
