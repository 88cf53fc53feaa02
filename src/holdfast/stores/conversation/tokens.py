"""Token counts: the number of tokens a message takes up in a model's context window.

The count that was stored with a message takes precedence: its author knew the model. Without one, the content is
counted when it is appended, by the function passed as ``Holdfast(count_tokens=...)`` or else by ``estimate``. What a
provider bills for a request includes the whole context; it is never part of these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...core import text
from ...core.scope import Setting
from ...errors import InvalidInput
from .message_log import Message

TokenCounter = Callable[[Any], int]
"""A function from the content of a message, a list of blocks or any other JSON value, to a number of tokens."""

MAX_TOKENS = 2**31 - 1
BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 4
"""The overhead of every message: its role and its delimiters."""
TOOL_TOKENS = 10
"""The overhead of a tool call or its result."""
MEDIA_TOKENS = 200
"""The estimate for an image or a document, whose size in bytes says nothing about its tokens."""

_MEDIA = ("image", "document")
_TEXT_BLOCKS = ("text", "thinking")


def estimate(content: Any) -> int:
    """Estimate the tokens of a content: a quarter of its bytes, plus an overhead for each message and each tool call."""
    return MESSAGE_TOKENS + _content(content)


def count_content(setting: Setting, content: Any, stored: str) -> int:
    """Return the tokens of a content whose stored form is ``stored``. If the setting's own function fails, the error is logged
    and the count is 0: no append fails because of it."""
    if setting.count_tokens is None:
        if type(content) is str and content.isascii():  # the common case, without any blocks
            return MESSAGE_TOKENS + (len(content) + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN
        if isinstance(content, (str, list, tuple)):
            return estimate(content)
        return MESSAGE_TOKENS + _tokens(
            text.size(stored)
        )  # the result of ``estimate``, without encoding the content again
    try:
        return counter_of(setting)(text.load(stored))
    except Exception as error:
        import logging  # only needed here, and slow to import

        log = logging.getLogger("holdfast")
        log.warning("a message is stored without a token count: %s: %s", type(error).__name__, error)
        return 0


def counter_of(setting: Setting, own: TokenCounter | None = None) -> TokenCounter:
    """Return the token counter of a setting, or ``own``, with a check of its results."""
    own = own or setting.count_tokens
    if own is None:
        return estimate

    def count(content: Any) -> int:
        tokens = own(content)
        if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 <= tokens <= MAX_TOKENS:
            raise InvalidInput(
                f"count_tokens must return a whole number from 0 on, not {tokens!r}", field="count_tokens"
            )
        return tokens

    return count


def tokens_of(message: Message, count: TokenCounter) -> int:
    """Return the tokens of a message: the count that was stored with it, or else the result of the counter."""
    return message.token_count or count(message.content)


def _content(content: Any) -> int:
    if isinstance(content, str):
        return _text(content)
    if isinstance(content, (list, tuple)) and all(type(item) is dict or isinstance(item, Mapping) for item in content):
        return sum(map(_block, content))
    return _json(content)


def _block(block: Mapping[str, Any]) -> int:
    kind = block.get("type")
    if kind in _TEXT_BLOCKS and isinstance(block.get(kind), str):
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
