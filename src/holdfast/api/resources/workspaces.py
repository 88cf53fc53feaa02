"""Rewinding runs to an earlier step.

Workspace directories are usually not on the server's machine, and a caller that could name one could write to any path the server
can access. Therefore no directory is changed over HTTP: a rewind changes the run and its conversation and stays pending, and the
worker that next claims the run restores its workspace from the snapshot that the response names.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from holdfast.errors import Conflict, Fenced, NotFound
from holdfast.types import RewindResult

from ..auth import Caller
from ..operations import operation
from ..schemas import Uuid, present_fields
from ..state import Service
from .conversation import T

_MAX_NUMBER = 2**53


class RewindTo(Struct, frozen=True, forbid_unknown_fields=True):
    """The step to rewind to."""

    to_step: Annotated[int, Meta(ge=0, le=_MAX_NUMBER, description="0 is before the first step.")]
    epoch: (
        Annotated[int, Meta(ge=0, le=_MAX_NUMBER, description="The epoch of the run's current lease.")] | UnsetType
    ) = UNSET
    files: (
        Annotated[bool, Meta(description="Whether to restore the workspace as well; if not, its files stay unchanged.")]
        | UnsetType
    ) = UNSET
    keep_snapshots_for: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=_MAX_NUMBER,
                description="Days for which its snapshots are kept after it has ended; at most 90.",
            ),
        ]
        | UnsetType
    ) = field(default=UNSET, name="keep_checkpoints_for")


@operation("POST", "/v1/agent/runs/{run_id}/rewind", raises=[NotFound, Conflict, Fenced], area="runs")
async def rewind_own_run(service: Service, *, run_id: Uuid, body: RewindTo, caller: Caller) -> RewindResult:
    """Rewind a run of the key's tenant to a step. Its worker restores the files when the run is resumed."""
    return await _rewind(service, caller.tenant or service.default_tenant, run_id, body)


@operation("POST", T + "/runs/{run_id}/rewind", raises=[NotFound, Conflict, Fenced], area="runs")
async def rewind_run(service: Service, *, tenant: str, run_id: Uuid, body: RewindTo) -> RewindResult:
    """Rewind a run and its conversation to a step. Its worker restores the files when the run is resumed."""
    return await _rewind(service, tenant, run_id, body)


async def _rewind(service: Service, tenant: str, run_id: str, body: RewindTo) -> RewindResult:
    result = await service.tenant(tenant).workspaces.rewind(run_id, path=None, **present_fields(body))
    service.notifier.publish(f"{tenant}/{run_id}")
    return result


class Redo(Struct, frozen=True, forbid_unknown_fields=True):
    """The caller's lease, if it has one."""

    epoch: (
        Annotated[int, Meta(ge=0, le=_MAX_NUMBER, description="The epoch of the run's current lease.")] | UnsetType
    ) = UNSET


@operation("POST", T + "/runs/{run_id}/redo", raises=[NotFound, Conflict, Fenced], area="runs")
async def redo_run(service: Service, *, tenant: str, run_id: Uuid, body: Redo) -> RewindResult:
    """Undo the last rewind of a run. Its worker restores the files when the run is resumed."""
    result = await service.tenant(tenant).workspaces.redo(run_id, later=True, **present_fields(body))
    service.notifier.publish(f"{tenant}/{run_id}")
    return result
