"""The console over ASGI: what each page shows, what each form does, who is let in; all of it without JavaScript."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
from gateway_stack import MakeStack, Stack
from receiver import answers, receiving

from gateway.console.access import FORM_TYPE, HEADERS, SESSION_SECONDS
from gateway.console.rendering import age, duration, number, size
from gateway.console.timeline import story
from queuecore.broker import Failure, NewJob, OwnedClaim
from queuecore.job import JobRecord, PastStage, Status, Step
from queuecore.names import new_job_id
from queuecore.notice import Attempt, NewNotice, NoticeStatus
from queuecore.testing.clock import eventually

pytestmark = pytest.mark.anyio

LLAMA = "meta-llama/Llama-3.1-8B"
TOKEN = "a-token-of-some-length"
ORIGIN = {"origin": "http://localhost"}
EVIL = "<script>alert(1)</script>\"'&\u202e"


class Page(HTMLParser):
    """What a browser would make of it: tags in order, and the text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


async def see(stack: Stack, path: str, status: int = 200) -> Page:
    response = await stack.admin.get(path)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    return Page(response.text)


async def press(stack: Stack, path: str, status: int = 303, **fields: object) -> httpx.Response:
    headers = {"content-type": FORM_TYPE, **ORIGIN}
    response = await stack.admin.post(f"/console{path}", content=urlencode(fields, doseq=True), headers=headers)
    assert response.status_code == status, response.text
    return response


async def submit(stack: Stack, count: int = 1) -> list[str]:
    return [(await stack.client.post("/jobs/chat", json={"input": 1})).json()["job_id"] for _ in range(count)]


async def bury(stack: Stack, count: int) -> list[str]:
    ids = await submit(stack, count)
    broker = stack.brokers[LLAMA]
    for _ in range(count * (broker.limits.max_reap_attempts + 1)):
        claim = await stack.claim(LLAMA)
        _ = await broker.renew(claim, "memory:9")
        _ = await broker.reap_dead(OwnedClaim(claim.job_id, claim.fence, claim.claim_id, "memory:9"), "exit 137")
    return ids


async def letters(stack: Stack) -> list[str]:
    return [record.id for record in await stack.brokers[LLAMA].deadletters()]


# -- pages ------------------------------------------------------------------------------------------------------


async def test_root_of_the_admin_port_leads_to_the_console(stack: Stack) -> None:
    response = await stack.admin.get("/")

    assert (response.status_code, response.headers["location"]) == (303, "/console")
    assert (await stack.admin.get("/queues")).headers["content-type"] == "application/json"


async def test_queues_page_shows_depth_age_and_state_of_each(stack: Stack) -> None:
    _ = await submit(stack, 2)
    stack.queue.clock.advance(61_000)
    await stack.brokers["small"].pause()

    shown = await see(stack, "/console")

    assert f"{LLAMA} chat · list running 2 0 0 0 0 1 min 1 s" in shown.text
    assert "small echo · list paused 0" in shown.text
    assert [one["value"] for one in shown.all("input") if one.get("name") == "model"] == list(stack.brokers)


async def test_queue_page_shows_who_runs_what(stack: Stack) -> None:
    _ = await submit(stack, 2)
    claim = await stack.claim(LLAMA)
    stack.queue.clock.advance(20_000)

    shown = await see(stack, f"/console/queue?model={LLAMA}")

    assert f"{claim.job_id} relay 20 s 40 s" in shown.text
    assert "1 of 10 000 may wait" in shown.text
    assert (await see(stack, "/console/queue?model=none", 404)).text.count("no model 'none'") == 1


async def test_job_is_found_by_its_id_and_lists_by_model_and_status(stack: Stack) -> None:
    ids = await submit(stack, 3)
    claim = await stack.claim(LLAMA)

    found = await stack.admin.get("/console/jobs", params={"q": f" {ids[0].upper()} "})
    processing = await see(stack, f"/console/jobs?model={LLAMA}&status=processing&q=")
    elsewhere = await see(stack, "/console/jobs?model=small&status=")
    nonsense = await see(stack, "/console/jobs?q=nonsense")

    assert (found.status_code, found.headers["location"]) == (303, f"/console/jobs/{ids[0]}")
    assert [one for one in ids if one in processing.text] == [claim.job_id]
    assert "No such jobs" in elsewhere.text
    assert "That is not a job id" in nonsense.text


async def test_older_jobs_are_a_page_away(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.console.pages.JOBS_SHOWN", 2)
    ids: list[str] = []
    for _ in range(3):
        ids += await submit(stack)
        stack.queue.clock.advance(1)

    first = await see(stack, "/console/jobs")
    [older] = [str(one["href"]) for one in first.all("a") if one.get("rel") == "next"]
    second = await see(stack, older)

    assert [one for one in ids if one in first.text] == ids[1:]
    assert [one for one in ids if one in second.text] == ids[:1]
    assert not [one for one in second.all("a") if one.get("rel") == "next"]


async def test_job_page_tells_its_story(stack: Stack) -> None:
    [job_id] = await submit(stack)
    waiting = (await see(stack, f"/console/jobs/{job_id}")).text
    claim = await stack.claim(LLAMA)
    running = (await see(stack, f"/console/jobs/{job_id}")).text
    await stack.complete(claim, b"{}")
    done = (await see(stack, f"/console/jobs/{job_id}")).text

    assert "0 ahead in the queue" in waiting
    assert "Waiting now for a relay to claim it" in waiting
    assert "Attempt 1 started now by relay, fence 1" in running
    assert "Lease ends to come" in running
    assert "Completed the result is stored" in done
    assert "Removed to come record, input and result" in done


async def test_unknown_removed_and_malformed_ids_are_pages_in_words(stack: Stack) -> None:
    [job_id] = await submit(stack)
    await stack.complete(await stack.claim(LLAMA), b"{}")
    stack.queue.clock.advance(86_400_001)

    assert "its retention is over" in (await see(stack, f"/console/jobs/{job_id}", 410)).text
    assert "no such job" in (await see(stack, f"/console/jobs/{new_job_id()}", 404)).text
    assert "is not a job id" in (await see(stack, "/console/jobs/nonsense", 404)).text
    assert "route_not_found" in (await see(stack, "/console/nowhere", 404)).text
    assert (await stack.admin.get("/console/queue/pause")).status_code == 405


async def test_dead_letters_show_their_exit_cause(stack: Stack) -> None:
    ids = await bury(stack, 2)

    shown = await see(stack, "/console/deadletters")

    assert all(one in shown.text for one in ids)
    assert shown.text.count("exit 137 4") == 2
    assert {one["value"] for one in shown.all("input") if one.get("type") == "checkbox" and one.get("name")} == set(ids)


async def test_every_text_of_a_client_is_escaped(stack: Stack) -> None:
    job = NewJob(
        id=new_job_id(),
        fields={
            "service_type": "echo", "operation": EVIL, "tenant": EVIL, "input_filename": EVIL + "\udcff", "params": EVIL,
            "input_content_type": EVIL, "callback_url": f"javascript:{EVIL}", "traceparent": EVIL,
        },
        ordering_key=EVIL,
    )  # fmt: skip
    _ = await stack.brokers["large"].submit(job)
    claim = await stack.claim("large")
    _ = await stack.brokers["large"].fail(claim, Failure("inference_error", EVIL, 503))

    for path in (f"/console/jobs/{job.id}", "/console/jobs", "/console/queue?model=large"):
        source = (await stack.admin.get(path)).text
        assert "alert(1)" in source
        assert "<script>alert" not in source
        assert not [
            one for one in Page(source).all("a") if not str(one["href"] or "/console").startswith(("/console", "#"))
        ]
    for path in ("/console/queue", "/console/jobs", "/console/deadletters"):
        assert "<script>alert" not in (await stack.admin.get(path, params={"model": EVIL})).text
    for said in (EVIL, "purged&n=" + EVIL):
        assert "alert(1)" not in (await stack.admin.get(f"/console?said={said}")).text


async def test_pages_have_no_inline_script_or_style_and_name_everything(stack: Stack) -> None:
    [job_id] = await bury(stack, 1)
    for path in (
        "/console", f"/console/queue?model={LLAMA}", "/console/jobs", f"/console/jobs/{job_id}", "/console/deadletters",
        "/console/webhooks", "/console/nowhere",
    ):  # fmt: skip
        source = (await stack.admin.get(path)).text
        shown = Page(source)
        assert [one.get("src") for one in shown.all("script")] == ["/console/assets/console.js"]
        assert not re.search(r"<style|\sstyle=|\son\w+=", source)
        assert [len(shown.all(tag)) for tag in ("main", "header", "h1")] == [1, 1, 1]
        assert shown.all("html") == [{"lang": "en"}]
        ids = [one["id"] for _, one in shown.tags if "id" in one]
        assert len(ids) == len(set(ids)), path
        labelled = {one.get("for") for one in shown.all("label")}
        for tag in ("input", "select", "meter"):
            for one in shown.all(tag):
                named = one.get("id") in labelled or "aria-label" in one or one.get("name") == "sure"
                assert one.get("type") == "hidden" or named, (path, one)
        for _, one in shown.tags:
            pointed = str(one.get("aria-labelledby") or one.get("aria-describedby") or "")
            assert set(pointed.split()) <= set(ids)


async def test_every_answer_carries_the_headers_that_keep_it_shut(stack: Stack) -> None:
    for path in ("/", "/console", "/console/nowhere", "/console/assets/console.css"):
        response = await stack.admin.get(path)
        assert {name: response.headers[name] for name in HEADERS} == HEADERS
        assert response.headers["cache-control"] in {"no-store", "no-cache"}
    assert "unsafe" not in HEADERS["content-security-policy"]


async def test_files_come_from_the_package_and_are_asked_for_again(stack: Stack) -> None:
    for name, kind in (("console.css", "text/css"), ("console.js", "text/javascript"), ("icon.svg", "image/svg")):
        first = await stack.admin.get(f"/console/assets/{name}")
        again = await stack.admin.get(f"/console/assets/{name}", headers={"if-none-match": first.headers["etag"]})
        assert first.headers["content-type"].startswith(kind)
        assert "://" not in first.text.replace("http://www.w3.org/2000/svg", "")
        assert (again.status_code, again.content) == (304, b"")
    assert (await stack.admin.get("/console/assets/..%2fpages.py")).status_code == 404
    assert (await stack.admin.get("/console/assets/pages.py")).status_code == 404


# -- forms ------------------------------------------------------------------------------------------------------


async def test_queue_is_paused_and_resumed_and_the_page_says_so(stack: Stack) -> None:
    _ = await submit(stack)

    paused = await press(stack, "/queue/pause", model=LLAMA, back="queue")
    said = (await see(stack, paused.headers["location"])).text
    resumed = await press(stack, "/queue/resume", model=LLAMA, back="queues")

    assert "The queue is paused" in said
    assert "Resume" in said
    assert resumed.headers["location"].startswith("/console?")
    assert (await stack.brokers[LLAMA].counts()).pending == 1


async def test_purge_asks_first(stack: Stack) -> None:
    _ = await submit(stack, 2)

    refused = await press(stack, "/queue/purge", 400, model=LLAMA)
    assert (await stack.brokers[LLAMA].counts()).pending == 2
    done = await press(stack, "/queue/purge", model=LLAMA, sure="yes")

    assert "Nothing was purged" in refused.text
    assert "Waiting jobs cancelled: 2." in (await see(stack, done.headers["location"])).text
    assert (await stack.brokers[LLAMA].counts()).pending == 0


async def test_chosen_dead_letters_are_redriven_and_the_rest_stay(stack: Stack) -> None:
    ids = await bury(stack, 3)

    started = await press(stack, "/deadletters/redrive", model=LLAMA, what="chosen", per_second="50", id=ids[:2])
    assert await eventually(lambda: letters_are(stack, ids[2:]))

    shown = (await see(stack, started.headers["location"])).text
    assert "Redrive started. Jobs: 2." in shown
    assert "2 of 2 redriven at 50 per second" in shown


async def letters_are(stack: Stack, ids: list[str]) -> bool:
    return sorted(await letters(stack)) == sorted(ids)


async def test_redrive_keeps_its_pace_and_can_be_stopped(stack: Stack) -> None:
    ids = await bury(stack, 3)

    _ = await press(stack, "/deadletters/redrive", model=LLAMA, what="all", per_second="0.1")
    assert await eventually(lambda: letters_count(stack, 2))
    second = await press(stack, "/deadletters/redrive", 409, model=LLAMA, what="all", per_second="1")
    running = (await see(stack, "/console/deadletters")).text
    _ = await press(stack, "/deadletters/stop", model=LLAMA)
    stopped = (await see(stack, "/console/deadletters")).text

    assert "runs already" in second.text
    assert "Redrive running 1 of 3 redriven at 0.1 per second" in running
    assert "Redrive stopped 1 of 3 redriven at 0.1 per second; stopped by an operator" in stopped
    assert len(set(ids) & set(await letters(stack))) == 2


async def letters_count(stack: Stack, count: int) -> bool:
    return len(await letters(stack)) == count


async def test_redrive_says_what_it_was_refused(stack: Stack) -> None:
    [letter] = await bury(stack, 1)
    [alive] = await submit(stack)

    _ = await press(stack, "/deadletters/redrive", model=LLAMA, per_second="50", id=[alive, "nonsense", letter])
    assert await eventually(lambda: letters_count(stack, 0))

    shown = (await see(stack, f"/console/deadletters?model={LLAMA}")).text
    assert "1 of 3 redriven at 50 per second, 2 refused." in shown
    assert "is pending" in shown


async def test_dropped_dead_letters_leave_the_list(stack: Stack) -> None:
    ids = await bury(stack, 2)

    done = await press(stack, "/deadletters/drop", model=LLAMA, id=[ids[0], "nonsense"])

    assert "Taken off the list: 1." in (await see(stack, done.headers["location"])).text
    assert await letters(stack) == [ids[1]]


async def test_job_page_redrives_a_dead_letter_and_cancels_a_job(stack: Stack) -> None:
    [job_id] = await bury(stack, 1)

    again = await press(stack, "/job/redrive", id=job_id)
    page = (await see(stack, again.headers["location"])).text
    refused = await press(stack, "/job/redrive", 409, id=job_id)
    cancelled = await press(stack, "/job/cancel", id=job_id)

    assert "Redriven generation 2" in page
    assert "is pending" in refused.text
    assert "The job is cancelled." in (await see(stack, cancelled.headers["location"])).text


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/queue/pause", {"model": "none"}, 404), ("/queue/pause", {}, 404), ("/deadletters/redrive", {"model": LLAMA}, 400),
        ("/deadletters/redrive", {"model": LLAMA, "per_second": "0", "what": "all"}, 400),
        ("/deadletters/redrive", {"model": LLAMA, "per_second": "nan", "what": "all"}, 400),
        ("/deadletters/redrive", {"model": LLAMA, "per_second": "1"}, 400), ("/deadletters/drop", {"model": LLAMA}, 400),
        ("/job/cancel", {"id": "nonsense"}, 404), ("/job/cancel", {"id": new_job_id()}, 404), ("/job/redrive", {}, 404),
        ("/job/cancel", {"id": "x" * 300_000}, 413),
    ],
)  # fmt: skip
async def test_wrong_form_is_refused_in_words(stack: Stack, path: str, fields: dict[str, str], status: int) -> None:
    response = await press(stack, path, status, **fields)

    assert "Back to the queues" in response.text


async def test_form_that_is_none_is_refused(stack: Stack) -> None:
    kind = {"content-type": FORM_TYPE, **ORIGIN}
    for body in (b"\xff\xfe", b"&".join(b"a=1" for _ in range(2000))):
        response = await stack.admin.post("/console/queue/pause", content=body, headers=kind)
        assert response.status_code == 400


# -- who is let in ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"origin": "null"}, {"origin": "http://["}, {"origin": "https://evil.example"}, {"origin": "http://localhost:3000"},
        {**ORIGIN, "sec-fetch-site": "same-site"}, {**ORIGIN, "sec-fetch-site": "cross-site"},
        {**ORIGIN, "host": "evil.example"}, {"origin": "http://evil.example", "host": "evil.example"},
    ],
)  # fmt: skip
async def test_forms_of_other_pages_change_nothing(stack: Stack, headers: dict[str, str]) -> None:
    response = await stack.admin.post("/console/queue/pause", data={"model": LLAMA}, headers=headers)

    assert response.status_code == 403
    assert not (await stack.brokers[LLAMA].counts()).paused_reason


async def test_forms_are_forms_and_nothing_else(stack: Stack) -> None:
    response = await stack.admin.post("/console/queue/pause", json={"model": LLAMA}, headers=ORIGIN)

    assert response.status_code == 415


async def test_links_from_elsewhere_lead_here_and_scripts_from_elsewhere_do_not(stack: Stack) -> None:
    site = {"sec-fetch-site": "cross-site"}

    assert (await stack.admin.get("/console", headers={**site, "sec-fetch-mode": "navigate"})).status_code == 200
    assert (await stack.admin.get("/console", headers={**site, "sec-fetch-mode": "no-cors"})).status_code == 403
    assert (await stack.admin.get("/console", headers={"host": "rebound.example"})).status_code == 403


@pytest.fixture
async def locked(make_stack: MakeStack, tmp_path: Path) -> Stack:
    path = tmp_path / "token"
    _ = path.write_text(TOKEN)
    return await make_stack(admin_token_file=str(path))


async def sign_in(stack: Stack, token: str = TOKEN, target: str = "/console") -> httpx.Response:
    return await stack.admin.post("/console/login", data={"token": token, "next": target}, headers=ORIGIN)


async def test_with_a_token_pages_ask_to_sign_in_and_forms_do_nothing(locked: Stack) -> None:
    page = await locked.admin.get("/console/jobs?status=failed")
    form = await locked.admin.post("/console/queue/pause", data={"model": LLAMA}, headers=ORIGIN)

    assert page.status_code == 303
    assert page.headers["location"] == "/console/login?next=%2Fconsole%2Fjobs%3Fstatus%3Dfailed"
    assert form.status_code == 401
    assert not (await locked.brokers[LLAMA].counts()).paused_reason
    shown = await see(locked, page.headers["location"])
    assert {"type": "hidden", "name": "next", "value": "/console/jobs?status=failed"} in shown.all("input")
    assert (await locked.admin.get("/console/assets/console.css")).status_code == 200


async def test_signing_in_sets_a_cookie_that_opens_the_console_and_never_the_api(locked: Stack) -> None:
    answer = await sign_in(locked, target="/console/jobs")
    cookie = answer.headers["set-cookie"]

    assert (answer.status_code, answer.headers["location"]) == (303, "/console/jobs")
    assert {"HttpOnly", "SameSite=strict", "Path=/console"} <= {part.strip() for part in cookie.split(";")}
    assert TOKEN not in cookie
    assert (await locked.admin.get("/console")).status_code == 200
    assert (await locked.admin.get("/queues", headers={"cookie": cookie.partition(";")[0]})).status_code == 401
    assert (await press(locked, "/queue/pause", model=LLAMA)).headers["location"].startswith("/console/queue")


async def test_wrong_token_is_said_and_sets_nothing(locked: Stack) -> None:
    for wrong in ("", "wrong", TOKEN + "x", "é"):
        answer = await sign_in(locked, wrong)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert "That is not the admin token." in answer.text


async def test_session_ends_by_itself_and_by_signing_out(locked: Stack) -> None:
    _ = await sign_in(locked)
    locked.queue.clock.advance((SESSION_SECONDS + 1) * 1000)
    assert (await locked.admin.get("/console")).status_code == 303

    _ = await sign_in(locked)
    assert "Sign out" in (await see(locked, "/console")).text
    _ = await press(locked, "/logout")
    assert (await locked.admin.get("/console")).status_code == 303


@pytest.mark.parametrize("made_up", ["", "x", "9999999999", "9999999999.", "9999999999." + "0" * 64, "٣.x", "1.é"])
async def test_made_up_session_is_none(locked: Stack, made_up: str) -> None:
    response = await locked.admin.get("/console", headers=[(b"cookie", f"relayq_console={made_up}".encode())])

    assert response.status_code == 303


async def test_session_of_another_token_is_none(locked: Stack, make_stack: MakeStack, tmp_path: Path) -> None:
    path = tmp_path / "other"
    _ = path.write_text("another-token-of-some-length")
    other = await make_stack(admin_token_file=str(path))
    cookie = (await sign_in(locked)).headers["set-cookie"].partition(";")[0]

    assert (await other.admin.get("/console", headers={"cookie": cookie})).status_code == 303
    assert (await other.admin.get("/console", headers={"authorization": f"Bearer {TOKEN}"})).status_code == 303


@pytest.mark.parametrize(
    "target", ["https://evil.example", "//evil.example", "/consoles", "/queues", "", "/console\\@x"]
)
async def test_signing_in_never_leads_away(locked: Stack, target: str) -> None:
    assert (await sign_in(locked, target=target)).headers["location"] == "/console"


async def test_bearer_token_opens_the_console_too(locked: Stack) -> None:
    response = await locked.admin.get("/console", headers={"authorization": f"Bearer {TOKEN}"})

    assert response.status_code == 200


async def test_without_a_token_there_is_nothing_to_sign_in_to(stack: Stack) -> None:
    response = await stack.admin.get("/console/login")

    assert (response.status_code, response.headers["location"]) == (303, "/console")
    assert "Sign out" not in (await see(stack, "/console")).text


# -- words ------------------------------------------------------------------------------------------------------


def test_durations_sizes_and_numbers_are_short() -> None:
    assert [duration(one) for one in (None, 0, 999, 59_999, 61_000, 3_600_000, 86_400_000 * 3 + 3_600_000 * 4)] == [
        "-", "0 ms", "999 ms", "59 s", "1 min 1 s", "1 h", "3 d 4 h",
    ]  # fmt: skip
    assert [size(one) for one in (None, 0, 1023, 1024, 1_500_000, 2**50)] == [
        "-", "0 B", "1023 B", "1.0 KiB", "1.4 MiB", "1024.0 TiB",
    ]  # fmt: skip
    assert [age(one) for one in (None, 999, 61_000)] == ["-", "< 1 s", "1 min 1 s"]
    assert number(1_234_567) == "1\u202f234\u202f567"


def test_story_of_a_redriven_job_that_lost_workers() -> None:
    record = JobRecord(
        id=new_job_id(), status=Status.FAILED, tenant="acme", generation=2, created_at=1_000, not_before=1_500, claims=4,
        reaps=3, failures=1, started_at=2_000, owner="relay-7", fence=9, finished_at=3_000, expires_at=9_000,
        error_code="worker_lost", error_message="died", last_exit="exit 137",
    )  # fmt: skip

    assert [(one.kind, one.at, one.title, one.detail) for one in story(record, 4_000)] == [
        ("done", 1_000, "Submitted", "by acme"),
        ("done", 1_500, "Held back until", ""),
        ("done", None, "Redriven", "generation 2: counters start again"),
        ("bad", None, "3 earlier attempts", "3 workers lost; 1 failure retried; last exit: exit 137"),
        ("done", 2_000, "Attempt 4 started", "by relay-7, fence 9"),
        ("bad", 3_000, "Failed", "worker_lost: died"),
        ("coming", 9_000, "Removed", "record, input and result"),
    ]


def test_story_of_a_run_between_its_stages() -> None:
    plan = tuple(Step(stage, "go", "form", "/go") for stage in ("store", "chunk", "embed"))
    past = PastStage("store", 1_000, 3_000, 8_000, 2, 1, 0, "key", 7, "1:c")
    record = JobRecord(
        id=new_job_id(), status=Status.PROCESSING, created_at=1_000, claims=1, started_at=9_000, owner="relay-7", fence=9,
        pipeline="ingest", stage="chunk", plan=plan, history=(past,), lease_until=20_000,
    )  # fmt: skip

    assert [(one.kind, one.at, one.title, one.detail) for one in story(record, 10_000)] == [
        ("done", 1_000, "Submitted", ""),
        ("done", 8_000, "Stage store completed", "waited 2 s, ran 5 s, 2 attempts, 1 worker lost"),
        ("now", 9_000, "Attempt 1 started at stage chunk", "by relay-7, fence 9"),
        ("coming", 20_000, "Lease ends", "unless its relay renews it; then the job goes to another"),
        ("coming", None, "Stage embed", ""),
    ]


def test_story_of_a_job_that_is_held_back_and_flagged() -> None:
    record = JobRecord(id=new_job_id(), status=Status.PENDING, created_at=1_000, not_before=5_000, deadline=4_000)

    assert [(one.at, one.title) for one in story(record, 2_000)] == [
        (1_000, "Submitted"), (None, "Waiting"), (4_000, "Deadline"), (5_000, "Eligible"),
    ]  # fmt: skip
    flagged = JobRecord(id=record.id, status=Status.PROCESSING, started_at=2_000, claims=1, cancel_requested=1)
    assert "Cancel requested" in [one.title for one in story(flagged, 3_000)]


# -- webhooks ---------------------------------------------------------------------------------------------------


async def test_webhooks_show_every_attempt_and_are_delivered_again(make_stack: MakeStack) -> None:
    stack = await make_stack(webhook_allow="127.0.0.1")
    async with receiving(answers(410, 200, body=EVIL.encode())) as receiver:
        created = await stack.client.post("/jobs/chat", json={"input": 1, "callback_url": receiver.url})
        job_id = created.json()["job_id"]
        await stack.complete(await stack.claim(LLAMA), b"{}")

        async def stands(status: str) -> bool:
            return f"{job_id}:1 {status}" in (await see(stack, "/console/webhooks")).text

        assert await eventually(lambda: stands("stopped"))
        told = await see(stack, f"/console/webhooks/{job_id}:1")
        again = await press(stack, "/webhook/redeliver", id=f"{job_id}:1")
        assert await eventually(lambda: stands("delivered"))

    assert "410 127.0.0.1" in told.text
    assert "job.completed" in told.text
    assert "<script>alert" not in (await stack.admin.get(f"/console/webhooks/{job_id}:1")).text
    assert "Planned anew: 1." in (await see(stack, again.headers["location"])).text
    assert f"/console/webhooks/{job_id}:1" in {
        one["href"] for one in (await see(stack, f"/console/jobs/{job_id}")).all("a")
    }


async def test_webhooks_are_filtered_and_everything_parked_goes_out_again(make_stack: MakeStack) -> None:
    stack = await make_stack(webhook_allow="127.0.0.1")
    parked = NewNotice(f"{new_job_id()}:1", new_job_id(), LLAMA, "", "http://127.0.0.1:1/", "t", "{}")
    assert await stack.gateway.edge.notices.plan(parked)
    [due] = await stack.gateway.edge.notices.due("test", limit=1, per_target=1, lease_ms=60_000)
    _ = await stack.gateway.edge.notices.settle(due, Attempt(1, "parked"), NoticeStatus.PARKED, retain_ms=60_000)

    listed = (await see(stack, "/console/webhooks?status=parked")).text
    none = (await see(stack, "/console/webhooks?status=delivered&cursor=")).text
    again = await press(stack, "/webhook/redeliver")

    assert f"{parked.event_id} parked" in listed
    assert "1 parked: given up" in listed
    assert "No such webhooks" in none
    assert "Planned anew: 1." in (await see(stack, again.headers["location"])).text
    assert "webhook_not_found" in (await see(stack, "/console/webhooks/nonsense", 404)).text
    assert "webhook_not_found" in (await press(stack, "/webhook/redeliver", 404, id="nonsense")).text
    assert "one of pending" in (await see(stack, "/console/webhooks?status=nonsense", 400)).text
