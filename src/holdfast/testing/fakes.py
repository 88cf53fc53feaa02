"""A model that answers from a script, for tests of agents that need no network."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidInput
from ..loop import ModelTurn, Reply


class ScriptedModel:
    """A model for ``Loop`` that gives the reply of the turn's iteration, counted from 1.

    The reply depends on the iteration only, so a loop that resumes after a crash gets the same reply again.
    A turn after the last reply fails the run, with an error that says so.
    """

    def __init__(self, replies: Sequence[Reply | str]) -> None:
        self.replies = list(replies)
        self.turns: list[ModelTurn] = []
        """Every turn the model was asked for, in order; a retried one is here twice."""

    def __call__(self, turn: ModelTurn) -> Reply | str:
        self.turns.append(turn)
        if turn.iteration > len(self.replies):
            raise InvalidInput(
                f"iteration {turn.iteration} has no reply: the script ends after {len(self.replies)}. "
                "Add a reply, or let the last one end the run"
            )
        return self.replies[turn.iteration - 1]
