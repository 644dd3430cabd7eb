"""The console in Debian's Chromium: live without a reload, usable by keyboard, named for screen readers, whole without
JavaScript. ``CONSOLE_SCREENSHOTS=docs/img`` writes the documents' pictures.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from playwright.async_api import Browser, Page, expect

from browser.scene import LLAMA, SDXL, WHISPER, Scene
from queuecore.job import Status
from queuecore.testing.clock import eventually
from queuecore.testing.raw_http import HeldModel
from queuecore.testing.requirement import requirement

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(120)]

WITHIN_MS: Final = 20_000
_NO_PAGE: Final = "the server responded with a status of 404"  # a page of ours that says so
SHOTS: Final = os.environ.get("CONSOLE_SCREENSHOTS", "")
FOCUSABLE: Final = {
    "button",
    "link",
    "textbox",
    "searchbox",
    "combobox",
    "checkbox",
    "spinbutton",
    "meter",
    "progressbar",
}
CONTRAST: Final = """() => {
  const parse = (text) => { const c = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    c.fillStyle = text; c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data]; };
  const light = (rgb) => { const [r, g, b] = rgb.slice(0, 3).map((v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; }
    return [255, 255, 255, 255]; };
  const low = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !e.getClientRects().length || e.closest(".hidden, .skip")) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) low.push(`${e.tagName}.${e.className} ${ratio.toFixed(2)}: ${e.textContent.trim().slice(0, 30)}`);
  }
  return low;
}"""


@pytest.fixture
async def page(browser: Browser, scene: Scene) -> AsyncIterator[Page]:
    """A page that complains about nothing: no error, no violated policy, no request to anywhere else."""
    shown = await browser.new_page()
    complaints: list[str] = []
    shown.on(
        "console",
        lambda said: complaints.append(said.text) if said.type == "error" and _NO_PAGE not in said.text else None,
    )
    shown.on("pageerror", lambda error: complaints.append(str(error)))
    shown.on(
        "request", lambda request: None if request.url.startswith(scene.console) else complaints.append(request.url)
    )
    shown.set_default_timeout(WITHIN_MS)
    yield shown
    assert complaints == []


async def same_page(page: Page) -> bool:
    """Marked by ``mark``: it was not loaded again."""
    return bool(await page.evaluate("window.marked === true"))


async def mark(page: Page) -> None:
    await page.evaluate("window.marked = true")


@requirement("console:job:live")
async def test_job_is_followed_live_to_its_end_without_a_reload(page: Page, scene: Scene, model: HeldModel) -> None:
    [job_id] = await scene.submit(WHISPER)
    _ = await page.goto(scene.console)
    await page.get_by_label("Job id").fill(job_id)
    await page.get_by_role("button", name="Find").click()
    verdict = page.locator("#verdict .status")
    await expect(verdict).to_have_text("pending", timeout=WITHIN_MS)
    await mark(page)

    await scene.relay(WHISPER, model)
    await expect(verdict).to_have_text("processing", timeout=WITHIN_MS)
    await expect(page.get_by_role("list").filter(has_text="Attempt 1 started")).to_be_visible()
    model.go_on.set()

    await expect(verdict).to_have_text("completed", timeout=WITHIN_MS)
    await expect(page.get_by_role("status")).to_have_text("The job is completed")
    await expect(page.get_by_role("button", name="Cancel job")).to_have_count(0)
    assert await same_page(page)


@requirement("console:deadletter:redriven-at-a-pace")
async def test_dead_letter_is_redriven_at_a_pace_and_the_page_follows(page: Page, scene: Scene) -> None:
    first, second = await scene.bury(LLAMA, 2)
    _ = await page.goto(f"{scene.console}/deadletters")
    await expect(page.get_by_role("row").filter(has_text=first)).to_contain_text("exit 137")

    await page.get_by_label(f"Choose {second}").check()
    await page.get_by_label("Jobs per second").fill("2")
    await page.get_by_role("button", name="Redrive").click()

    await expect(page.get_by_role("heading", name="Redrive done")).to_be_visible(timeout=WITHIN_MS)
    await expect(page.get_by_role("progressbar", name="Redrive done")).to_have_attribute("value", "1")
    await expect(page.get_by_role("row").filter(has_text=second)).to_have_count(0)
    await expect(page.get_by_role("row").filter(has_text=first)).to_have_count(1)
    assert (await scene.yard.status(second)).status == "pending"
    assert (await scene.yard.status(second)).generation == 2


async def test_refresh_keeps_what_the_operator_is_about_to_do(page: Page, scene: Scene) -> None:
    first, *_ = await scene.bury(LLAMA, 2)
    _ = await page.goto(f"{scene.console}/deadletters")
    await mark(page)
    chosen = page.get_by_label(f"Choose {first}")
    await chosen.check()
    await page.get_by_label("Jobs per second").fill("7")
    [late] = await scene.bury(LLAMA, 1)

    await expect(page.get_by_role("row").filter(has_text=late)).to_be_visible(timeout=WITHIN_MS)

    await expect(chosen).to_be_checked()
    await expect(page.get_by_label("Jobs per second")).to_have_value("7")
    await expect(page.get_by_label("Jobs per second")).to_be_focused()
    await page.get_by_label("Choose all on this page").check()
    assert await page.locator('input[name="id"]:checked').count() == 3
    assert await same_page(page)


async def test_live_updates_can_be_switched_off_and_stay_off(page: Page, scene: Scene) -> None:
    _ = await page.goto(scene.console)
    await page.get_by_role("button", name="Live").click()
    await expect(page.get_by_role("button", name="Live is off")).to_have_attribute("aria-pressed", "false")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.resource_type))

    await page.get_by_role("link", name="Jobs", exact=True).click()
    await page.wait_for_timeout(2_500)  # longer than the pause between two refreshes

    assert "fetch" not in asked
    await expect(page.get_by_role("button", name="Live is off")).to_be_visible()


async def test_gateway_that_goes_away_is_said_until_it_is_back(browser: Browser, scene: Scene) -> None:
    page = await browser.new_page()  # not the fixture: its console complains, as it must
    _ = await page.goto(scene.console)

    await page.context.set_offline(True)
    await expect(page.get_by_role("status")).to_contain_text("not up to date", timeout=WITHIN_MS)
    await page.context.set_offline(False)

    await expect(page.locator("#as-of")).not_to_contain_text("no connection", timeout=WITHIN_MS)
    await page.close()


@requirement("console:any:for-everybody")
async def test_everything_is_reached_and_done_by_keyboard(page: Page, scene: Scene) -> None:
    _ = await page.goto(scene.console)
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("main")).to_be_focused()

    await page.get_by_role("button", name=f"Pause {WHISPER}").focus()
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("button", name=f"Resume {WHISPER}")).to_be_visible()
    await expect(page.get_by_text("The queue is paused")).to_be_visible()
    await press_access_key(page, "3")
    await expect(page.get_by_role("heading", name="Dead letters", exact=True)).to_be_visible()


async def press_access_key(page: Page, key: str) -> None:
    """Alt and the key; playwright's own key presses leave out the text that access keys are looked up by."""
    session = await page.context.new_cdp_session(page)
    await session.send("Input.dispatchKeyEvent", {"type": "keyDown", "modifiers": 1, "key": key, "unmodifiedText": key})
    await session.detach()


async def tree_of(page: Page) -> list[dict[str, Any]]:
    """Chromium's own accessibility tree."""
    session = await page.context.new_cdp_session(page)
    nodes: list[dict[str, Any]] = (await session.send("Accessibility.getFullAXTree"))["nodes"]
    await session.detach()
    return [
        {"role": node.get("role", {}).get("value", ""), "name": node.get("name", {}).get("value", "").strip()}
        for node in nodes
        if not node.get("ignored")
    ]


@requirement("console:any:for-everybody")
async def test_every_page_has_landmarks_one_heading_and_names(page: Page, scene: Scene) -> None:
    for path in await furnished(scene):
        _ = await page.goto(f"{scene.console}{path}")
        tree = await tree_of(page)
        roles = [node["role"] for node in tree]
        assert [roles.count(role) for role in ("banner", "main", "search")] == [1, 1, 1], path
        assert {"role": "navigation", "name": "Console"} in tree
        assert len(await page.get_by_role("heading", level=1).all()) == 1
        assert [node for node in tree if node["role"] in FOCUSABLE | {"region", "table"} and not node["name"]] == []
        assert await page.locator('[aria-current="page"]').count() <= 1
        assert await page.title()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_text_has_contrast_in_both_schemes(
    page: Page, scene: Scene, scheme: Literal["light", "dark"]
) -> None:
    await page.emulate_media(color_scheme=scheme)
    for path in await furnished(scene):
        _ = await page.goto(f"{scene.console}{path}")
        assert await page.evaluate(CONTRAST) == [], path


async def test_pages_fit_a_narrow_window(page: Page, scene: Scene) -> None:
    await page.set_viewport_size({"width": 360, "height": 700})
    for path in await furnished(scene):
        _ = await page.goto(f"{scene.console}{path}")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


@requirement("console:any:for-everybody")
async def test_console_works_without_javascript(browser: Browser, scene: Scene) -> None:
    [letter] = await scene.bury(LLAMA, 1)
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    _ = await page.goto(scene.console)
    await page.get_by_role("button", name=f"Pause {LLAMA}").click()
    await expect(page.get_by_role("status").filter(has_text="The queue is paused")).to_be_visible()
    await expect(page.get_by_role("button", name="Live")).to_have_count(0)

    await page.get_by_role("link", name="Dead letters", exact=True).click()
    await page.get_by_label(f"Choose {letter}").check()
    await page.get_by_role("button", name="Redrive").click()

    async def redriven() -> bool:
        return (await scene.yard.status(letter)).generation == 2

    assert await eventually(redriven)
    await page.get_by_role("link", name="Refresh").click()
    await expect(page.get_by_role("heading", name="Redrive done")).to_be_visible()
    await context.close()


async def test_sign_in_keeps_its_cookie_from_scripts(browser: Browser, scene: Scene, tmp_path: Path) -> None:
    token = tmp_path / "token"
    _ = token.write_text("a-token-of-some-length")
    console = await scene.start(token_file=str(token))
    page = await browser.new_page()
    _ = await page.goto(f"{console}/jobs?status=failed")
    await page.get_by_label("Admin token").fill("wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text("That is not the admin token.")

    await page.get_by_label("Admin token").fill("a-token-of-some-length")
    await page.keyboard.press("Enter")

    await expect(page).to_have_url(re.compile(r"/console/jobs\?status=failed$"))
    assert await page.evaluate("document.cookie") == ""
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    await page.close()


async def furnished(scene: Scene) -> list[str]:
    """Queues in every state; the paths of every page."""
    _ = await scene.submit(WHISPER, callback_url="http://127.0.0.1:9/hook")  # loopback is refused: parked
    completed = await scene.finish(WHISPER)

    async def parked() -> bool:
        return await scene.yard.queue.notices.parked() == 1

    assert await eventually(parked, within=20)
    letters = await scene.bury(LLAMA, 3)
    _ = await scene.submit(WHISPER, 14)
    _ = await scene.submit(LLAMA, 5)
    _ = await scene.submit(SDXL, 3)
    await scene.run(WHISPER, 3, "relay-whisper-large-v3-7d9f")
    await scene.run(LLAMA, 1, "relay-llama-5c44")
    await scene.broker(SDXL).pause()
    [running, *_] = (await scene.broker(WHISPER).jobs(status=Status.PROCESSING)).jobs
    return [
        "", f"/queue?model={WHISPER}", f"/queue?model={SDXL}", "/jobs", f"/jobs/{running.id}", f"/jobs/{letters[0]}",
        f"/jobs/{completed}", "/deadletters", "/jobs?q=nonsense", "/nowhere", "/webhooks", f"/webhooks/{completed}:1",
    ]  # fmt: skip


async def test_pictures_of_the_documents(browser: Browser, scene: Scene) -> None:
    if not SHOTS:
        pytest.skip("CONSOLE_SCREENSHOTS is not set: no pictures are wanted")
    paths = await furnished(scene)
    named = {"queues": paths[0], "queue": paths[1], "job": paths[4], "deadletters": paths[7], "webhook": paths[11]}
    for scheme in ("light", "dark"):
        context = await browser.new_context(color_scheme=scheme, viewport={"width": 1200, "height": 700})
        page = await context.new_page()
        for name, path in named.items():
            _ = await page.goto(f"{scene.console}{path}")
            _ = await page.screenshot(path=Path(SHOTS) / f"console-{name}-{scheme}.png")
        await context.close()
