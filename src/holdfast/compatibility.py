"""Names that other systems prescribe. They are part of their interfaces, so they are not Holdfast's own terms."""

USER_FIELD = "koder_user_id"
"""The field for the tenant in erasure events and in log lines about snapshots."""
ERASURE_STREAM = "koder:events:id"
"""The default name of the Redis stream with erasure events."""
