"""The input of the model, read from the stores before each question to it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.errors import NotFound
from holdfast.types import Block, Run

from . import commands as do
from .commands import CommandGenerator
from .config import LoopConfig
from .events import Event
from .replies import ModelTurn


def build_turn(config: LoopConfig, run: Run, iteration: int, state: Any) -> CommandGenerator[ModelTurn]:
    """Read the input of the model for an iteration: the context, the agent and its core blocks."""
    context = yield do.BuildContext(run.session_id, config.context_tokens)
    agents = (yield do.FindAgents([run.agent])) if run.agent else []
    agent = agents[0] if agents else None
    blocks: Sequence[Block] = ()
    if agent is not None:
        try:
            blocks = yield do.ListBlocks(agent.id)
        except NotFound:
            pass  # the agent was removed between the two reads
    say = partial(_emit_token, config, run.id, iteration)
    return ModelTurn(run, iteration, state, context, agent, blocks, [*config.tools.values()], say)


def _emit_token(config: LoopConfig, run_id: str, iteration: int, piece: str) -> None:
    config.tell(Event("token", run_id, iteration, piece))
