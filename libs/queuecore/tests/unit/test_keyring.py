"""The key ring: what is accepted, what is refused, and that no text ever shows a key."""

from __future__ import annotations

import base64
import copy
import logging
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuecore.crypto.keyring import EncryptionKey, KeyRing
from queuecore.errors import BlobUnavailable, ConfigurationError, KeyUnknown, QueueCoreError

SECRET = bytes(range(200, 232))
ENCODED = base64.b64encode(SECRET).decode()
OTHER = base64.b64encode(bytes(32)).decode()


def test_the_first_key_is_current_and_all_are_found() -> None:
    ring = KeyRing.parse(f"2026-11:{ENCODED}\n2026-10:{OTHER}\n", "ENCRYPTION_KEYS")

    assert ring.current.key_id == "2026-11"
    assert ring.current.secret == SECRET
    assert ring.find("j/input", "2026-10").secret == bytes(32)
    assert ring.key_ids == ("2026-11", "2026-10")


def test_blank_lines_spaces_and_windows_line_ends_around_a_line_do_not_matter() -> None:
    ring = KeyRing.parse(f"\r\n  a:{ENCODED}  \r\n\r\nb:{OTHER}\r\n", "ENCRYPTION_KEYS_FILE")

    assert ring.key_ids == ("a", "b")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        pytest.param("", "holds no key", id="empty"),
        pytest.param(" \n\n", "holds no key", id="blank"),
        pytest.param(ENCODED, "line 1: write `id:base64`", id="no id"),
        pytest.param(f":{ENCODED}", "line 1: a key id has", id="empty id"),
        pytest.param(f"a b:{ENCODED}", "line 1: a key id has", id="space in the id"),
        pytest.param(f"{'k' * 65}:{ENCODED}", "line 1: a key id has 1 to 64", id="long id"),
        pytest.param(f"ключ:{ENCODED}", "line 1: a key id has", id="id beyond ASCII"),
        pytest.param(f"{ENCODED}:a", "line 1: a key id has", id="the wrong way round"),
        pytest.param(f"a:{ENCODED}\na:{OTHER}", "line 2: the key id a is there twice", id="id twice"),
        pytest.param(f"a:{ENCODED}\nb:", "line 2: the key b has 0 bytes; it needs 32", id="no key"),
        pytest.param(f"a:{base64.b64encode(SECRET[:16]).decode()}", "the key a has 16 bytes", id="AES-128 key"),
        pytest.param(f"a:{base64.b64encode(SECRET + b'x').decode()}", "the key a has 33 bytes", id="one byte more"),
        pytest.param(f"a:{ENCODED[:-1]}", "the key a is not valid base64", id="padding cut"),
        pytest.param(f"a:{ENCODED[:20]} {ENCODED[20:]}", "the key a is not valid base64", id="space in the key"),
        pytest.param(f"a:{ENCODED}é", "the key a is not valid base64", id="beyond ASCII"),
        pytest.param(f"a:{ENCODED}:b:{OTHER}", "the key a is not valid base64", id="two on one line"),
    ],
)
def test_a_bad_line_is_refused_by_number_and_rule_without_showing_the_key(text: str, rule: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        _ = KeyRing.parse(text, "ENCRYPTION_KEYS")

    assert str(caught.value).startswith("ENCRYPTION_KEYS")
    assert rule in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(ENCODED[at : at + 8] in shown for at in range(len(ENCODED) - 8))


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_ring_or_refused_in_words(text: str) -> None:
    try:
        ring = KeyRing.parse(text, "ENCRYPTION_KEYS")
    except ConfigurationError as error:
        assert str(error).startswith("ENCRYPTION_KEYS")  # noqa: PT017  a ring is as good an outcome
    else:
        assert ring.key_ids


def test_no_text_made_from_a_ring_or_a_key_holds_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    ring = KeyRing.parse(f"a:{ENCODED}", "ENCRYPTION_KEYS")
    key = EncryptionKey("a", SECRET)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").info("%s %r %s %r", ring, ring, key, copy.copy(key))

    for text in (repr(ring), str(key), f"{key!r}", caplog.text):
        assert "a" in text
        assert repr(SECRET)[2:10] not in text
        assert SECRET.hex()[:8] not in text
        assert ENCODED[:8] not in text


def test_an_unknown_key_is_an_operators_error_that_can_be_retried_and_names_the_key() -> None:
    ring = KeyRing.parse(f"new:{ENCODED}", "ENCRYPTION_KEYS")

    with pytest.raises(KeyUnknown, match=r"j/input.*'old'.*ENCRYPTION_KEYS") as caught:
        _ = ring.find("j/input", "old")

    error: QueueCoreError = caught.value
    assert isinstance(error, BlobUnavailable)
    assert error.retryable
    assert error.key_id == "old"
