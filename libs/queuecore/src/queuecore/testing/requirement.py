"""The mark that ties a test to a promise: ``@requirement("fence:complete:stale-refused")``.

The ids and their promises are the manifest ``tests/requirements.py``. It is compared with the marks by reading the
sources, both ways (``tests/test_requirements.py``), so this decorator needs no manifest and works in every member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])


def requirement(*ids: str) -> Callable[[Test], Test]:
    """Mark a test as a proof of these promises; give the ids as literal strings, for they are read from the source."""
    return pytest.mark.requirement(*ids)
