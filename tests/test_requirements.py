"""Promises and tests, compared both ways (quality: anything promised has an id and a test)."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _manifest() -> ModuleType:
    # Test modules are imported by path (import-mode=importlib), so the file beside this one is too.
    path = Path(__file__).with_name("requirements.py")
    spec = importlib.util.spec_from_file_location("relayq_requirements", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


manifest = _manifest()
PROVED = {proof.key for proof in manifest.proofs()}


@pytest.mark.parametrize("key", manifest.REQUIREMENTS)
def test_every_promise_has_a_test_or_says_why_not(key: str) -> None:
    deferred = manifest.REQUIREMENTS[key].deferred
    if deferred is None:
        assert key in PROVED, f"no test is marked @requirement({key!r})"
    else:
        assert deferred, "a deferred promise gives its reason"
        assert key not in PROVED, f"{key} has a test: it is not deferred any more"


def test_every_mark_names_a_promise() -> None:
    strangers = [proof for proof in manifest.proofs() if proof.key not in manifest.REQUIREMENTS]

    assert not strangers


def test_the_manifest_stays_readable() -> None:
    assert len(manifest.REQUIREMENTS) <= manifest.MOST
    assert sum(len(guarantee.requirements) for guarantee in manifest.GUARANTEES.values()) == len(manifest.REQUIREMENTS)
    for key in manifest.REQUIREMENTS:
        assert re.fullmatch(r"[a-z0-9-]+:[a-z0-9-]+:[a-z0-9-]+", key), key


def test_all_eleven_guarantees_are_there() -> None:
    assert [name for name in manifest.GUARANTEES if name.startswith("G")] == [f"G{number}" for number in range(1, 12)]


def test_the_page_cites_exactly_the_ids_of_the_manifest() -> None:
    cited = re.findall(r"^\| `([^`]+)` \|", manifest.PAGE.read_text("utf-8"), re.MULTILINE)

    assert cited == list(manifest.REQUIREMENTS)


def test_the_page_is_what_the_generator_makes() -> None:
    assert manifest.PAGE.read_text("utf-8") == manifest.current_page(), "run: python tests/requirements.py"


def test_marks_are_read_from_functions_classes_and_modules() -> None:
    source = (
        'pytestmark = [pytest.mark.anyio, requirement("a:b:c")]\n'
        '@requirement("d:e:f", "g:h:i")\nasync def test_one(): ...\n'
        '@pytest.mark.requirement("j:k:l")\nclass TestTwo: ...\n'
    )

    assert sorted((proof.key, proof.test) for proof in manifest.marks(source, "x.py")) == [
        ("a:b:c", "every test"), ("d:e:f", "test_one"), ("g:h:i", "test_one"), ("j:k:l", "TestTwo"),
    ]  # fmt: skip


def test_a_mark_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(TypeError, match="literal"):
        _ = list(manifest.marks("@requirement(KEY)\ndef test_one(): ...\n", "x.py"))
