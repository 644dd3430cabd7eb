"""One line a record, complete, bounded, and without secrets."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from queuecore.settings import Secret
from queuecore.telemetry import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def written(format: str = "json", level: str = "INFO") -> io.StringIO:  # noqa: A002
    stream = io.StringIO()
    logs.configure("test", level, format, stream)
    return stream


def line(stream: io.StringIO) -> dict[str, object]:
    (text,) = stream.getvalue().splitlines()
    return json.loads(text)


log = logging.getLogger("some.module")


def test_a_line_holds_the_common_fields_first_and_then_what_was_bound() -> None:
    stream = written()
    log.info("claimed %s", "it", extra={"event": "job.claimed", "job_id": "1", "attempt": 2, "ok": True, "none": None})

    fields = line(stream)
    assert list(fields)[:5] == ["ts", "level", "service", "event", "message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(fields.pop("ts")))
    assert fields == {
        "level": "INFO",
        "service": "test",
        "event": "job.claimed",
        "message": "claimed it",
        "job_id": "1",
        "attempt": 2,
        "ok": True,
        "none": None,
    }


def test_a_record_of_a_library_says_whose_it_is() -> None:
    stream = written()
    log.warning("hm")

    fields = line(stream)
    assert (fields["event"], fields["logger"]) == ("library.logged", "some.module")


def test_an_exception_is_one_line_with_its_stack() -> None:
    stream = written()
    log.error("it failed", exc_info=ValueError("bad\nvalue"), extra={"event": "pass.failed"})

    fields = line(stream)
    assert fields["error"] == "ValueError: bad\nvalue"
    assert "ValueError" in str(fields["stack"])


def test_a_second_configure_replaces_the_first() -> None:
    first = written()
    second = written(level="WARNING")
    log.info("quiet")
    log.warning("loud")

    assert first.getvalue() == ""
    assert line(second)["message"] == "loud"


def test_warnings_become_lines() -> None:
    import warnings

    stream = written()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", stacklevel=1)

    assert "old" in str(line(stream)["message"])


@pytest.mark.parametrize("name", ["httpx", "botocore", "asyncio"])
def test_libraries_that_tell_about_every_request_are_quiet(name: str) -> None:
    stream = written(level="DEBUG")
    logging.getLogger(f"{name}.inner").debug("GET /?token=abc")
    logging.getLogger(name).info("GET /?token=abc")

    assert stream.getvalue() == ""


SECRET = "s3cr3t-W0rd/with@odd:chars"


@pytest.mark.parametrize(
    "text",
    [
        f"redis://user:{SECRET}@host:6379/0",
        f"rediss://:{SECRET}@host/0 refused",
        "redis://:s3cr3t?W0rd@host/0",
        f"connecting to https://u:{SECRET}@example.org/path",
        f"POST https://example.org/hook?sig={SECRET}&x=1",
        f"Authorization: Bearer {SECRET}",
        f"headers {{'authorization': 'Basic {SECRET}'}}",
        f"Proxy-Authorization: {SECRET}",
        "Cookie: session=s3cr3t-W0rd",
        "x-api-key: s3cr3t-W0rd",
        '{"api_key": "s3cr3t-W0rd"}',
        "password=s3cr3t-W0rd next",
        "AWS_SECRET_ACCESS_KEY=s3cr3t-W0rd",
        "REDIS_PASSWORD: s3cr3t-W0rd",
        "access_token=s3cr3t-W0rd&x=1",
        "using whsec_s3cr3tW0rd",
    ],
)
@pytest.mark.parametrize("format", ["json", "console"])
def test_secrets_in_texts_do_not_pass(text: str, format: str) -> None:  # noqa: A002
    stream = written(format)
    log.info("%s", text, extra={"event": "job.claimed", "detail": text, "nested": {"deep": [text]}})
    log.error("failed", exc_info=RuntimeError(text), extra={"event": "job.failed"})
    shown = stream.getvalue()

    assert "s3cr3t" not in shown
    assert "W0rd" not in shown


@pytest.mark.parametrize(
    "name",
    ["authorization", "Cookie", "redis_password", "api_key", "apikey", "x-api-key", "token", "secret", "signature"],
)
def test_fields_with_a_secret_name_are_masked(name: str) -> None:
    stream = written()
    log.info("x", extra={"event": "job.claimed", "headers": {name: "s3cr3t"}, "secret_field": "s3cr3t"})

    assert line(stream)["headers"] == {name: "***"}
    assert "s3cr3t" not in stream.getvalue()


def test_harmless_names_are_not_masked() -> None:
    stream = written()
    log.info("took 5 tokens: done", extra={"event": "job.claimed", "tokens_used": 5, "key": "job/input"})

    fields = line(stream)
    assert (fields["tokens_used"], fields["key"], fields["message"]) == (5, "job/input", "took 5 tokens: done")


def test_a_secret_of_the_settings_and_a_claim_id_are_not_shown_whole() -> None:
    stream = written()
    log.info("x", extra={"event": "job.claimed", "claim_id": "0123456789abcdef", "setting": Secret("s3cr3t")})

    fields = line(stream)
    assert (fields["claim_id"], fields["setting"]) == ("01234567", "Secret(***)")


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), "\ud800", "\x00\x1b[31m", b"\xff", {1: {2: {3: {4: {5: 6}}}}}, {"a"}, object()],
)
@pytest.mark.parametrize("format", ["json", "console"])
def test_any_value_makes_one_valid_line(value: object, format: str) -> None:  # noqa: A002
    stream = written(format)
    log.info("%s", value, extra={"event": "job.claimed", "value": value})

    (text,) = stream.getvalue().splitlines()
    assert text.isascii() or format == "console"
    assert "\x1b" not in text
    if format == "json":
        assert json.loads(text, parse_constant=pytest.fail)["event"] == "job.claimed"


def test_a_value_that_holds_itself_ends() -> None:
    stream = written()
    loop: list[object] = []
    loop.append(loop)
    log.info("x", extra={"event": "job.claimed", "loop": loop})

    assert line(stream)["event"] == "job.claimed"


def test_long_texts_are_cut() -> None:
    stream = written()
    log.info("x" * 100_000, extra={"event": "job.claimed", "text": "y" * 100_000, "many": list(range(1000))})

    assert len(stream.getvalue()) < 3 * logs.LONGEST_TEXT


def test_a_forged_line_stays_one_line_on_a_console() -> None:
    stream = written("console")
    log.info("a\n12:00:00.000 ERROR forged", extra={"event": "job.claimed", "name_of_file": "b\r\nc"})

    assert len(stream.getvalue().splitlines()) == 1


def test_masking_a_long_hostile_text_is_quick() -> None:
    from queuecore.clock import monotonic

    began = monotonic()
    for text in (
        "a://" * 4000,
        "authorization" * 800,
        "https://" * 1100,
        "https://" + "x" * 9000,
        "bearer " * 1200,
        "token" * 1600,
        "password=" * 1000,
        "a:" * 4000 + "@",
    ):
        _ = logs.mask(text)

    assert monotonic() - began < 1


def test_what_is_bound_is_on_every_line_written_inside_and_on_none_after_it() -> None:
    stream = written()
    with logs.bound(job_id="1", trace_id=""):
        log.info("a library's line")
        log.info("a line of another job", extra={"event": "job.claimed", "job_id": "2"})
        with logs.bound(attempt=3, password="secret"):
            log.info("nested")
    log.info("after")

    first, own, nested, after = map(json.loads, stream.getvalue().splitlines())
    assert (first["job_id"], own["job_id"], nested["job_id"]) == ("1", "2", "1")
    assert (nested["attempt"], nested["password"]) == (3, "***")
    assert not {"trace_id"} & first.keys()
    assert not {"job_id", "attempt"} & after.keys()


@pytest.mark.anyio
async def test_what_is_bound_follows_into_tasks_and_threads() -> None:
    stream = written()

    async def elsewhere() -> None:
        log.info("in a task")
        await asyncio.to_thread(log.info, "in a thread")

    with logs.bound(job_id="1"):
        task = asyncio.create_task(elsewhere())
    await task

    assert [json.loads(one)["job_id"] for one in stream.getvalue().splitlines()] == ["1", "1"]


def test_it_is_cheap_to_import() -> None:
    code = (
        "import sys, json, logging; before = set(sys.modules); import queuecore.telemetry.logs; "
        "print(*(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert {name for name in loaded if not name.startswith("queuecore")} <= {
        "math", "typing", "_typing", "typing.io", "typing.re", "__future__", "contextvars", "_contextvars",
    }  # fmt: skip
