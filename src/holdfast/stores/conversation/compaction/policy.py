"""The policy of a compaction: when it is due, its target, and which messages are protected."""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from ....errors import InvalidInput

_MAX_NAME = 64
_MAX_TOKENS = 2**53


class CompactionPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a session is kept inside its model's context window.

    Messages marked as preserved, messages of the role ``system``, the last ``preserve_last`` messages and the last
    ``protected_tokens`` tokens are never changed. Zero disables a protection.

    Raises:
        InvalidInput: a field is out of its range.
    """

    strategy: str = "hybrid"
    """``"hybrid"``, ``"summarization"``, or the name of your own strategy."""
    trigger: float = 0.85
    """The share of the window at which a compaction is due; over 0, at most 1."""
    target_tokens: int = 80_000
    """Tokens to reach: ``hybrid`` summarises nothing if removing tool outputs is enough to reach this."""
    preserve_last: int = 10
    """Number of newest messages that are never changed."""
    protected_tokens: int = 40_000
    """Tokens of the newest messages that are never changed: as many whole messages as fit."""
    window_tokens: int = 200_000
    """The context window of the model, in tokens."""
    keep_tool_outputs: bool = False
    """Whether ``hybrid`` leaves tool outputs unchanged."""
    prune_tokens: int = 1_000
    """The least number of tokens that removing tool outputs must save; otherwise they stay."""
    summary_tokens: int = 4_096
    """The most tokens that a summary may have."""

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, str) or not 0 < len(self.strategy) <= _MAX_NAME:
            raise InvalidInput(
                f"strategy must be a name of 1 to {_MAX_NAME} characters, not {self.strategy!r}", field="strategy"
            )
        if not _is_number(self.trigger) or not 0 < self.trigger <= 1:
            raise InvalidInput(f"trigger must be over 0 and at most 1, not {self.trigger!r}", field="trigger")
        if not isinstance(self.keep_tool_outputs, bool):
            raise InvalidInput(
                f"keep_tool_outputs must be true or false, not {self.keep_tool_outputs!r}", field="keep_tool_outputs"
            )
        for name, minimum in _MIN_VALUES.items():
            _check_count(name, getattr(self, name), minimum)
        if self.target_tokens >= self.window_tokens:
            raise InvalidInput(
                f"target_tokens = {self.target_tokens:,} must be less than window_tokens = {self.window_tokens:,}",
                field="target_tokens",
            )

    @property
    def due_tokens(self) -> int:
        """The number of tokens at which a compaction is due."""
        # Rounded first: 0.07 * 100 is slightly more than 7, and would be rounded up to 8.
        return max(1, math.ceil(round(self.trigger * self.window_tokens, 6)))


_MIN_VALUES = {
    "target_tokens": 1,
    "preserve_last": 0,
    "protected_tokens": 0,
    "window_tokens": 1,
    "prune_tokens": 0,
    "summary_tokens": 1,
}


def policy_or_default(policy: CompactionPolicy | None) -> CompactionPolicy:
    """Return the given policy, or the default policy for ``None``.

    Raises:
        InvalidInput: ``policy`` is not a ``CompactionPolicy``.
    """
    if policy is None:
        return CompactionPolicy()
    if not isinstance(policy, CompactionPolicy):
        raise InvalidInput(f"policy must be a CompactionPolicy, not {type(policy).__name__}", field="policy")
    return policy


def _check_count(name: str, value: Any, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= _MAX_TOKENS:
        raise InvalidInput(f"{name} must be a whole number from {minimum} to {_MAX_TOKENS}, not {value!r}", field=name)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
