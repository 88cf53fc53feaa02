"""Scripted model for tests of agents without a network."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidInput
from ..loop import ModelTurn, Reply


class ScriptedModel:
    """A model for ``Loop`` that returns the reply for the turn's iteration, counted from 1.

    The reply depends only on the iteration, so a loop that resumes after a crash gets the same reply again.
    A turn after the last reply fails the run with ``InvalidInput``.
    """

    def __init__(self, replies: Sequence[Reply | str]) -> None:
        self.replies = list(replies)
        self.turns: list[ModelTurn] = []
        """Every requested turn, in order; a retried turn appears twice."""

    def __call__(self, turn: ModelTurn) -> Reply | str:
        self.turns.append(turn)
        if turn.iteration > len(self.replies):
            raise InvalidInput(
                f"iteration {turn.iteration} has no reply: the script ends after {len(self.replies)}. "
                "Add a reply, or let the last one end the run"
            )
        return self.replies[turn.iteration - 1]
