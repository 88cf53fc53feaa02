"""What everything stands on: the activity log and how long things are kept."""

from __future__ import annotations

from holdfast import Activity, AsyncActivities, AsyncRetention

from ..derived import route
from .conversation import T

_KEPT = T + "/retention"

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
    route("POST", _KEPT + "/holds", "retention", AsyncRetention.hold, "create_hold", need="admin"),
    route(
        "POST", _KEPT + "/holds/{hold_id}/release", "retention", AsyncRetention.release, "release_hold", need="admin"
    ),
]
