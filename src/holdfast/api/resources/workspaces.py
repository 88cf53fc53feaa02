"""Workspaces: taking a run back to a step.

The directories themselves are where the agents work, which is rarely where the server runs, and a caller who could name one would
write anywhere the server can. So over HTTP no directory is touched: a rewind takes the run and its conversation back and stays
pending, and the worker that next claims the run brings its workspace to the snapshot that the answer names.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from holdfast.errors import Conflict, Fenced, NotFound
from holdfast.types import RewindResult

from ..auth import Caller
from ..operations import operation
from ..schemas import Uuid, given
from ..state import Service
from .conversation import T

_MAX_NUMBER = 2**53


class RewindTo(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to go back to."""

    to_step: Annotated[int, Meta(ge=0, le=_MAX_NUMBER, description="0 is before the first step.")]
    epoch: Annotated[int, Meta(ge=0, le=_MAX_NUMBER, description="That of whoever drives the run now.")] | UnsetType = (
        UNSET
    )
    files: (
        Annotated[bool, Meta(description="Whether the workspace goes back too; if not, its files stay as they are.")]
        | UnsetType
    ) = UNSET
    keep_snapshots_for: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=_MAX_NUMBER,
                description="Days for which its snapshots are kept after it has ended; more than 90 are cut down to 90.",
            ),
        ]
        | UnsetType
    ) = field(default=UNSET, name="keep_checkpoints_for")


@operation("POST", "/v1/agent/runs/{run_id}/rewind", raises=[NotFound, Conflict, Fenced], area="runs")
async def rewind_own_run(service: Service, *, run_id: Uuid, body: RewindTo, caller: Caller) -> RewindResult:
    """Take a run of the key's own tenant back to a step. Its worker brings the files back when the run is resumed."""
    return await _rewound(service, caller.tenant or service.default_tenant, run_id, body)


@operation("POST", T + "/runs/{run_id}/rewind", raises=[NotFound, Conflict, Fenced], area="runs")
async def rewind_run(service: Service, *, tenant: str, run_id: Uuid, body: RewindTo) -> RewindResult:
    """Take a run and its conversation back to a step. Its worker brings the files back when the run is resumed."""
    return await _rewound(service, tenant, run_id, body)


async def _rewound(service: Service, tenant: str, run_id: str, body: RewindTo) -> RewindResult:
    done = await service.tenant(tenant).workspaces.rewind(run_id, path=None, **given(body))
    service.notifier.publish(f"{tenant}/{run_id}")
    return done


class Redo(Struct, frozen=True, forbid_unknown_fields=True):
    """Who asks for it."""

    epoch: Annotated[int, Meta(ge=0, le=_MAX_NUMBER, description="That of whoever drives the run now.")] | UnsetType = (
        UNSET
    )


@operation("POST", T + "/runs/{run_id}/redo", raises=[NotFound, Conflict, Fenced], area="runs")
async def redo_run(service: Service, *, tenant: str, run_id: Uuid, body: Redo) -> RewindResult:
    """Undo the last rewind of a run. Its worker brings the files back when the run is resumed."""
    done = await service.tenant(tenant).workspaces.redo(run_id, later=True, **given(body))
    service.notifier.publish(f"{tenant}/{run_id}")
    return done
