"""Routes of the platform: activity log, retention, erasures, quotas and diagnostics."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from holdfast.errors import Conflict, NotFound
from holdfast.types import (
    Activity,
    AsyncActivities,
    AsyncApiKeys,
    AsyncDiagnostics,
    AsyncErasures,
    AsyncRetention,
    AsyncTenants,
    Hold,
)

from ..auth import Caller
from ..idempotency import IdempotencyKey, chosen_id
from ..operations import operation
from ..schemas import Uuid, present_fields
from ..state import Service
from ..store_routes import route
from .conversation import T

_RETENTION = T + "/retention"


class NewHold(Struct, frozen=True, forbid_unknown_fields=True):
    """A hold: snapshots to keep, and the reason."""

    reason: str
    run_id: Uuid | UnsetType | None = UNSET
    session_id: Uuid | UnsetType | None = UNSET
    placed_by: str | UnsetType | None = UNSET
    id: Uuid | UnsetType | None = UNSET


@operation("POST", _RETENTION + "/holds", status=201, raises=[NotFound, Conflict], need="admin", area="retention")
async def create_hold(
    service: Service, *, tenant: str, body: NewHold, caller: Caller, idempotency_key: IdempotencyKey = None
) -> Hold:
    """Keep all snapshots of a run, a session or the tenant. A hold by a key of the tenant does not prevent its erasure."""
    fields = present_fields(body)
    fields["id"] = chosen_id(service, fields.get("id"), idempotency_key)
    return await service.tenant(tenant).retention.hold(by_tenant=bool(caller.tenant), **fields)


ROUTES = [
    route("GET", T + "/activity", "activity", AsyncActivities.list, "list_activity"),
    route("POST", T + "/activity", "activity", AsyncActivities.record, "record_activity"),
    route("GET", T + "/activity/count", "activity", AsyncActivities.count, "count_activity", row=Activity),
    route("GET", T + "/activity/{activity_id}", "activity", AsyncActivities.get, "get_activity"),
    route("GET", _RETENTION + "/policy", "retention", AsyncRetention.policy, "get_retention_policy"),
    route("PUT", _RETENTION + "/policy", "retention", AsyncRetention.set_policy, "set_retention_policy", need="admin"),
    route(
        "DELETE",
        _RETENTION + "/policy",
        "retention",
        AsyncRetention.clear_policy,
        "clear_retention_policy",
        need="admin",
    ),
    route("GET", _RETENTION + "/plan", "retention", AsyncRetention.plan, "plan_retention"),
    route(
        "POST",
        _RETENTION + "/sweep",
        "retention",
        AsyncRetention.sweep,
        "sweep_retention",
        need="admin",
        leave_out=["holder"],
    ),
    route("GET", _RETENTION + "/holds", "retention", AsyncRetention.holds, "list_holds"),
    route(
        "POST",
        _RETENTION + "/holds/{hold_id}/release",
        "retention",
        AsyncRetention.release,
        "release_hold",
        need="admin",
    ),
    route(
        "PUT",
        T + "/runs/{run_id}/keep-snapshots-for",
        "retention",
        AsyncRetention.keep_snapshots_for,
        "keep_snapshots_for",
        area="retention",
    ),
    # For operators of the whole server
    route(
        "GET",
        T + "/diagnostics",
        "diagnostics",
        AsyncDiagnostics.look,
        "look_for_damage",
        need="admin",
        area="diagnostics",
    ),
    route(
        "POST",
        T + "/diagnostics/repair",
        "diagnostics",
        AsyncDiagnostics.repair,
        "repair",
        need="admin",
        area="diagnostics",
    ),
    route(
        "PUT",
        T + "/quota",
        "tenants",
        AsyncTenants.set_quota,
        "set_tenant_quota",
        need="root",
        area="tenants",
        renamed={"snapshot_quota_mib": "checkpoint_quota_mib"},
    ),
    route(
        "DELETE",
        T + "/quota",
        "tenants",
        AsyncTenants.set_quota,
        "clear_tenant_quota",
        need="root",
        area="tenants",
        fixed={"snapshot_quota_mib": None},
        summary="Give a tenant's snapshots the default quota.",
    ),
    route(
        "DELETE", "/v1/keys/{key_id}", "api_keys", AsyncApiKeys.delete, "delete_key", need="root", leave_out=["tenant"]
    ),
    route("GET", "/v1/erasures", "erasures", AsyncErasures.list, "list_erasures", need="root"),
    route("POST", T + "/erasures", "erasures", AsyncErasures.request, "record_erasure", need="root"),
    route(
        "POST",
        T + "/erasures/carry-out",
        "erasures",
        AsyncErasures.carry_out,
        "carry_out_erasure",
        need="root",
        leave_out=["holder"],
    ),
]
