"""When a session is compacted, how far, and what is never touched."""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from ....errors import InvalidInput

_MAX_NAME = 64
_MAX_TOKENS = 2**53


class CompactionPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a session is kept inside its window.

    Messages that are marked as preserved, those of the role ``system``, the last ``preserve_last`` messages and the last
    ``protected_tokens`` tokens are never touched. Zero means zero.

    Raises:
        InvalidInput: a field is out of its range.
    """

    strategy: str = "hybrid"
    """``"hybrid"``, ``"summarization"``, or the name of a strategy of one's own."""
    trigger: float = 0.85
    """The share of the window from which on a compaction is due; over 0, at most 1."""
    target_tokens: int = 80_000
    """How many tokens are few enough: with ``hybrid``, nothing is summarised if removing tool outputs gets there."""
    preserve_last: int = 10
    """So many of the newest messages are not touched."""
    protected_tokens: int = 40_000
    """The newest messages are not touched while all of them together have at most so many tokens."""
    window_tokens: int = 200_000
    """What the model can take in at once."""
    keep_tool_outputs: bool = False
    """Whether ``hybrid`` leaves the outputs of tools as they are."""
    prune_tokens: int = 1_000
    """Tool outputs are removed only if that saves at least so many tokens."""
    summary_tokens: int = 4_096
    """The most that a summary may have."""

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, str) or not 0 < len(self.strategy) <= _MAX_NAME:
            raise InvalidInput(f"strategy must be a name of at most {_MAX_NAME} letters, not {self.strategy!r}")
        if not _is_number(self.trigger) or not 0 < self.trigger <= 1:
            raise InvalidInput(f"trigger must be over 0 and at most 1, not {self.trigger!r}")
        if not isinstance(self.keep_tool_outputs, bool):
            raise InvalidInput(f"keep_tool_outputs must be true or false, not {self.keep_tool_outputs!r}")
        for name, least in _LEAST.items():
            _check_count(name, getattr(self, name), least)
        if self.target_tokens >= self.window_tokens:
            raise InvalidInput(
                f"target_tokens must be less than window_tokens; {self.target_tokens:,} is not less than"
                f" {self.window_tokens:,}: choose a smaller target or a larger window"
            )

    @property
    def due_tokens(self) -> int:
        """The number of tokens from which on a compaction is due."""
        # Rounded first: 0.07 * 100 is a little more than 7, and 7 tokens are enough.
        return max(1, math.ceil(round(self.trigger * self.window_tokens, 6)))


_LEAST = {
    "target_tokens": 1,
    "preserve_last": 0,
    "protected_tokens": 0,
    "window_tokens": 1,
    "prune_tokens": 0,
    "summary_tokens": 1,
}


def checked(policy: CompactionPolicy | None) -> CompactionPolicy:
    """A policy the caller gave, or the default one.

    Raises:
        InvalidInput: it is something else.
    """
    if policy is None:
        return CompactionPolicy()
    if not isinstance(policy, CompactionPolicy):
        raise InvalidInput(f"policy must be a CompactionPolicy, not {type(policy).__name__}")
    return policy


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_TOKENS:
        raise InvalidInput(f"{name} must be a whole number from {least} on, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
