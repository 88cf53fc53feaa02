"""What everything stands on: the activity log, how long things are kept, who is to be forgotten, and whether all is well."""

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
from ..schemas import Uuid, given
from ..state import Service
from ..store_routes import route
from .conversation import T

_KEPT = T + "/retention"


class NewHold(Struct, frozen=True, forbid_unknown_fields=True):
    """What must be kept, and why."""

    reason: str
    run_id: Uuid | UnsetType | None = UNSET
    session_id: Uuid | UnsetType | None = UNSET
    placed_by: str | UnsetType | None = UNSET
    id: Uuid | UnsetType | None = UNSET


@operation("POST", _KEPT + "/holds", status=201, raises=[NotFound, Conflict], need="admin", area="retention")
async def create_hold(
    service: Service, *, tenant: str, body: NewHold, caller: Caller, idempotency_key: IdempotencyKey = None
) -> Hold:
    """Keep all snapshots of a run, a session or the tenant. A hold of the tenant's own key does not stop its erasure."""
    asked = given(body)
    asked["id"] = chosen_id(service, asked.get("id"), idempotency_key)
    return await service.tenant(tenant).retention.hold(by_tenant=bool(caller.tenant), **asked)


ROUTES = [
    route("GET", T + "/activity", "activity", AsyncActivities.list, "list_activity"),
    route("POST", T + "/activity", "activity", AsyncActivities.record, "record_activity"),
    route("GET", T + "/activity/count", "activity", AsyncActivities.count, "count_activity", row=Activity),
    route("GET", T + "/activity/{activity_id}", "activity", AsyncActivities.get, "get_activity"),
    route("GET", _KEPT + "/policy", "retention", AsyncRetention.policy, "get_retention_policy"),
    route("PUT", _KEPT + "/policy", "retention", AsyncRetention.set_policy, "set_retention_policy", need="admin"),
    route(
        "DELETE", _KEPT + "/policy", "retention", AsyncRetention.clear_policy, "clear_retention_policy", need="admin"
    ),
    route("GET", _KEPT + "/plan", "retention", AsyncRetention.plan, "plan_retention"),
    route(
        "POST",
        _KEPT + "/sweep",
        "retention",
        AsyncRetention.sweep,
        "sweep_retention",
        need="admin",
        leave_out=["holder"],
    ),
    route("GET", _KEPT + "/holds", "retention", AsyncRetention.holds, "list_holds"),
    route(
        "POST", _KEPT + "/holds/{hold_id}/release", "retention", AsyncRetention.release, "release_hold", need="admin"
    ),
    route(
        "PUT",
        T + "/runs/{run_id}/keep-snapshots-for",
        "retention",
        AsyncRetention.keep_snapshots_for,
        "keep_snapshots_for",
        area="retention",
    ),
    # What only those may do who look after the whole Holdfast
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
        words="Let a tenant's snapshots take what everybody's may.",
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
