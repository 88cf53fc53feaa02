"""What the content of a message may be, and the form it is stored in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core import text
from ...errors import InvalidInput
from ...limits import Limits

_MAX_UTF8 = 4
"""Bytes that a character takes at most."""


def stored_content(content: Any, kind: str, limits: Limits) -> str:
    """The content of an entry of some kind as it is stored.

    Raises:
        InvalidInput: it is not what this kind may hold.
        LimitExceeded: it is too large.
    """
    if kind != "message":
        stored = text.dump(content, depth=limits.json_depth)
    elif isinstance(content, str):
        # Plain text is the common case, and its block need not be searched for anything.
        stored = f'[{{"type":"text","text":{text.dump(content)}}}]'
    elif _are_blocks(content):
        stored = text.dump(content, depth=limits.json_depth)
    else:
        raise InvalidInput("content must be text or a list of content blocks, each with a 'type'")
    if len(stored) * _MAX_UTF8 > limits.content_bytes:
        limits.check("content_bytes", text.size(stored), "content")
    return stored


def _are_blocks(content: Any) -> bool:
    return isinstance(content, (list, tuple)) and all(
        isinstance(block, Mapping) and isinstance(block.get("type"), str) for block in content
    )
