"""How many tokens a message takes up in a model's window.

The count that came with the message is the truth: whoever appended it knew the model. Where none was given, the content is
counted when it is appended, by the function that was given to ``Holdfast(count_tokens=...)`` or else by ``estimate``. What a
provider bills for a request holds the whole context once more; it is never part of these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...core import text
from ...core.scope import Setting
from ...errors import InvalidInput
from .message_log import Message

TokenCounter = Callable[[Any], int]
"""From the content of a message, a list of blocks or any other JSON value, to a number of tokens."""

MAX_TOKENS = 2**31 - 1
BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 4
"""What surrounds every message: its role and its ends."""
TOOL_TOKENS = 10
"""What surrounds the call of a tool, or its result."""
MEDIA_TOKENS = 200
"""A picture or a document, whose bytes say nothing about its tokens."""

_MEDIA = ("image", "document")
_WORDS = ("text", "thinking")


def estimate(content: Any) -> int:
    """About as many tokens as a content has: a quarter of its bytes, and a little for each message and each tool call."""
    return MESSAGE_TOKENS + _content(content)


def counted(setting: Setting, content: Any, stored: str) -> int:
    """The tokens of a content that was given and is stored as ``stored``. Where the setting's own function fails, that is logged
    and the content counts nothing: no append fails because of it."""
    if setting.count_tokens is None:
        if type(content) is str and content.isascii():  # the common case, in which there is nothing to look for
            return MESSAGE_TOKENS + (len(content) + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN
        if isinstance(content, (str, list, tuple)):
            return estimate(content)
        return MESSAGE_TOKENS + _tokens(text.size(stored))  # what ``estimate`` says, without encoding it a second time
    try:
        return counter_of(setting)(text.load(stored))
    except Exception as error:
        import logging  # nobody else here needs it, and it takes its time to load

        log = logging.getLogger("holdfast")
        log.warning("a message is stored without a token count: %s: %s", type(error).__name__, error)
        return 0


def counter_of(setting: Setting, own: TokenCounter | None = None) -> TokenCounter:
    """The way to count in a setting, or ``own``, which checks what a caller's own function answers."""
    own = own or setting.count_tokens
    if own is None:
        return estimate

    def count(content: Any) -> int:
        found = own(content)
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= MAX_TOKENS:
            raise InvalidInput(f"count_tokens must return a whole number from 0 on, not {found!r}")
        return found

    return count


def tokens_of(message: Message, count: TokenCounter) -> int:
    """The tokens of a message: the count that was given with it, or else that of the counter."""
    return message.token_count or count(message.content)


def _content(content: Any) -> int:
    if isinstance(content, str):
        return _text(content)
    if isinstance(content, (list, tuple)) and all(type(each) is dict or isinstance(each, Mapping) for each in content):
        return sum(map(_block, content))
    return _json(content)


def _block(block: Mapping[str, Any]) -> int:
    kind = block.get("type")
    if kind in _WORDS and isinstance(block.get(kind), str):
        return _text(block[kind])
    if kind in _MEDIA:
        return MEDIA_TOKENS
    if isinstance(kind, str) and kind.endswith("tool_use"):
        return TOOL_TOKENS + _content(block.get("name") or "") + _json(block.get("input"))
    if "tool_use_id" in block:
        return TOOL_TOKENS + _content(block.get("content") or "")
    return _json(block)


def _json(value: Any) -> int:
    return _tokens(text.size(text.dump(value, depth=text.MAX_DEPTH)))


def _text(words: str) -> int:
    return _tokens(len(words) if words.isascii() else len(words.encode(errors="surrogatepass")))


def _tokens(size_bytes: int) -> int:
    return -(-size_bytes // BYTES_PER_TOKEN)
