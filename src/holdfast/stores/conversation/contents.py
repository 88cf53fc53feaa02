"""Validation of message contents, and their stored form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core import text
from ...errors import InvalidInput
from ...limits import Limits

_MAX_UTF8 = 4
"""The most bytes that one character takes."""


def stored_content(content: Any, kind: str, limits: Limits) -> str:
    """Check the content of an entry and return its stored form.

    Raises:
        InvalidInput: an entry of this kind cannot have this content.
        LimitExceeded: the content is too large.
    """
    if kind != "message":
        encoded = text.dump(content, depth=limits.json_depth)
    elif isinstance(content, str):
        # Plain text is the common case, and its block needs no checks.
        encoded = f'[{{"type":"text","text":{text.dump(content)}}}]'
    elif _are_blocks(content):
        encoded = text.dump(content, depth=limits.json_depth)
    else:
        raise InvalidInput("content must be text or a list of content blocks, each with a 'type'", field="content")
    if len(encoded) * _MAX_UTF8 > limits.content_bytes:
        limits.check("content_bytes", text.size(encoded), "content")
    return encoded


def _are_blocks(content: Any) -> bool:
    return isinstance(content, (list, tuple)) and all(
        isinstance(block, Mapping) and isinstance(block.get("type"), str) for block in content
    )
