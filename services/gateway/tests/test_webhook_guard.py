"""Where webhooks may go: every target of data/json/ssrf_targets.json (families f1 to f3), by table and by socket."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trustme
from gateway_stack import DATA, Stack
from receiver import answers, receiving

from gateway.webhooks.deliver import Deliverer
from gateway.webhooks.guard import Allow, Refused, check, judge
from queuecore.errors import ConfigurationError
from queuecore.testing.requirement import requirement

pytestmark = pytest.mark.anyio

TARGETS: list[dict[str, Any]] = json.loads((DATA / "json" / "ssrf_targets.json").read_text("utf-8"))
PUBLIC = "93.184.216.34"
NOBODY = Allow()


def verdict(url: str, addresses: Sequence[str], allow: Allow) -> str:
    try:
        target = check(url, allow)
        _ = judge(target, [str(target.literal)] if target.literal else addresses, allow)
    except Refused:
        return "block"
    return "allow"


@requirement("webhook:guard:only-public-targets")
@pytest.mark.parametrize("number", range(len(TARGETS)))
def test_every_target_of_the_corpus(number: int) -> None:
    case = TARGETS[number]
    url, _, redirect = case["url"].partition(" -> ")
    addresses = [address.partition(" ")[0] for address in case["resolves_to"] or ()]
    expected = {"allow": {"allow"}, "block": {"block"}, "refuse": {"block"}}.get(case["verdict"], {"block"})
    if redirect:
        expected = {"allow"}  # the first target is; the tests below follow the attempt
    if not case["url"].isascii():
        assert case["verdict"] == "block"

    assert verdict(url, addresses, NOBODY) in expected, case["why"]


async def test_refused_urls_are_refused_when_they_are_submitted(stack: Stack) -> None:
    for case in TARGETS:
        url = case["url"].partition(" -> ")[0]
        response = await stack.client.post("/jobs/echo?model=large", params={"callback_url": url}, content=b"x")
        refused = case["resolves_to"] is None or case["verdict"].startswith("refuse")
        assert response.status_code == (400 if refused else 202), url
        if refused:
            assert "callback_url" in response.json()["detail"]


@pytest.mark.parametrize(
    ("text", "url", "addresses", "expected"),
    [
        ("127.0.0.1", "http://127.0.0.1:8/", [], "allow"),
        ("127.0.0.0/8 ::1", "http://127.9.9.9/", [], "allow"),
        ("127.0.0.1:8", "http://127.0.0.1:8/", [], "allow"),
        ("127.0.0.1:8", "http://127.0.0.1:9/", [], "block"),
        ("[::1]:8", "http://[::1]:8/", [], "allow"),
        ("10.0.0.0/8", "http://inside.example/", ["10.1.1.1"], "allow"),
        ("10.0.0.0/8", "http://inside.example/", ["10.1.1.1", PUBLIC], "block"),
        ("10.0.0.0/8", "https://inside.example/", ["10.1.1.1", PUBLIC], "allow"),
        ("10.0.0.0/8", "https://inside.example/", ["10.1.1.1", "192.168.0.1"], "block"),
        ("hooks.svc", "http://hooks.svc/", ["10.1.1.1"], "allow"),
        ("http://hooks.svc:80/", "http://hooks.svc/", ["10.1.1.1"], "allow"),
        ("hooks.svc", "https://other.svc/", ["10.1.1.1"], "block"),
        ("http", "http://hooks.example.com/", [PUBLIC], "allow"),
        ("http", "http://hooks.example.com/", ["10.1.1.1"], "block"),
        ("", "https://hooks.example.com/", [], "block"),
        ("", "https://hooks.example.com./", [PUBLIC], "allow"),
        ("", "https://hooks.example.com/", ["2606:2800:220:1::1"], "allow"),
        ("", "https://hooks.example.com/", ["2002:7f00:1::"], "block"),
        ("", "https://hooks.example.com/", ["100.64.0.1"], "block"),
        ("", "https://0x7f.1/", [PUBLIC], "block"),
        ("", "https://hooks.example.com/#f", [PUBLIC], "block"),
        ("", "https://-a.example.com/", [PUBLIC], "block"),
        ("", "https://[::1%25lo]/", [PUBLIC], "block"),
    ],
)
def test_exceptions_and_odd_forms(text: str, url: str, addresses: list[str], expected: str) -> None:
    assert verdict(url, addresses, Allow(text)) == expected


def test_list_of_exceptions_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"GATEWAY_WEBHOOK_ALLOW: '\*'"):
        _ = Allow("127.0.0.1,*")


@requirement("webhook:guard:judged-address-dialled")
async def test_address_that_was_judged_is_the_one_that_is_dialled_and_asked_for_once() -> None:
    asked: list[str] = []

    async def rebind(host: str, _: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    async with receiving(answers(200)) as receiver:
        deliverer = Deliverer(Allow("127.0.0.1"), rebind)
        answer = await deliverer.deliver(f"http://rebind.example.com:{receiver.port}/x", b"{}", {})
        assert (answer.status, answer.address, asked) == (200, "127.0.0.1", ["rebind.example.com"])
        assert receiver.seen[0].headers["host"] == f"rebind.example.com:{receiver.port}"

        answer = await deliverer.deliver(f"http://rebind.example.com:{receiver.port}/x", b"{}", {})
        assert answer.refused
        assert len(receiver.seen) == receiver.dialled == 1
        await deliverer.aclose()


async def test_one_bad_address_among_good_ones_dials_nobody() -> None:
    async def mixed(_: str, __: int) -> Sequence[str]:
        return [PUBLIC, "127.0.0.1"]

    async with receiving(answers(200)) as receiver:
        deliverer = Deliverer(NOBODY, mixed)
        answer = await deliverer.deliver(f"https://mixed.example.com:{receiver.port}/", b"{}", {})
        await deliverer.aclose()

    assert (answer.refused, receiver.dialled) == (True, 0)
    assert "127.0.0.1" in answer.error


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    async with AsyncExitStack() as open_:
        inside = await open_.enter_async_context(receiving(answers(200)))
        head = f"location: {inside.url}\r\n"
        receiver = await open_.enter_async_context(receiving(answers(status, head=head)))
        deliverer = Deliverer(Allow("127.0.0.1"))
        answer = await deliverer.deliver(receiver.url, b"{}", {})
        await deliverer.aclose()

    assert (answer.status, answer.refused, inside.dialled) == (status, False, 0)


async def test_certificate_is_checked_on_the_name_and_not_on_the_address() -> None:
    authority = trustme.CA()
    server, client = (
        ssl.create_default_context(purpose) for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH)
    )
    authority.issue_cert("hooks.example.com").configure_cert(server)
    authority.configure_trust(client)

    async def here(_: str, __: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async with receiving(answers(200), tls=server) as receiver:
        deliverer = Deliverer(Allow("127.0.0.1"), here, client)
        good = await deliverer.deliver(f"https://hooks.example.com:{receiver.port}/", b"{}", {})
        bad = await deliverer.deliver(f"https://other.example.com:{receiver.port}/", b"{}", {})
        await deliverer.aclose()

    assert good.status == 200
    assert bad.status is None
    assert "CERTIFICATE_VERIFY_FAILED" in bad.error
    assert len(receiver.seen) == 1


async def test_second_address_is_tried_when_the_first_refuses_the_connection() -> None:
    async def two(_: str, __: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]

    async with receiving(answers(200)) as receiver:
        deliverer = Deliverer(Allow("127.0.0.0/8"), two)
        answer = await asyncio.wait_for(deliverer.deliver(f"http://two.example:{receiver.port}/", b"{}", {}), 5)
        await deliverer.aclose()

    assert (answer.status, answer.address) == (200, "127.0.0.1")
