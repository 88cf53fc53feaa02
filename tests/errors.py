"""Expected errors, checked by type and by field: the wording of a message may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def raises(error: type[BaseException], **fields: Any) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """``pytest.raises`` that also compares attributes of the error: ``raises(LimitExceeded, limit="body_bytes")``."""
    with pytest.raises(error) as caught:
        yield caught
    assert {name: getattr(caught.value, name) for name in fields} == fields
