"""Routes below a conversation: branches, compactions, pending messages, contacts, feedback, and search."""

from __future__ import annotations

from holdfast.types import (
    AsyncBranches,
    AsyncCompactions,
    AsyncContacts,
    AsyncFeedbackStore,
    AsyncGeneralFeedbackStore,
    AsyncMessages,
    AsyncPendingMessages,
    AsyncSessions,
    Contact,
    Feedback,
    Message,
    Session,
)

from ..record_routes import records
from ..store_routes import route

T = "/v1/tenants/{tenant}"
S = T + "/sessions/{session_id}"
_PENDING = T + "/pending-messages"
_FUNCTIONS = ("summarize", "strategy")

ROUTES = [
    route("GET", T + "/sessions/count", "sessions", AsyncSessions.count, "count_sessions", row=Session),
    route("GET", S + "/messages/count", "messages", AsyncMessages.count, "count_messages", row=Message),
    route(
        "GET",
        S + "/context",
        "messages",
        AsyncMessages.context,
        "get_context",
        area="messages",
        leave_out=["count_tokens"],
    ),
    route("GET", T + "/search", "messages", AsyncMessages.search, "search_messages", area="messages"),
    # Branches
    route("GET", S + "/branches", "branches", AsyncBranches.list, "list_branches"),
    route("POST", S + "/branches", "branches", AsyncBranches.fork, "fork_session", notifies="session_id"),
    route(
        "GET",
        S + "/branches/current",
        "branches",
        AsyncBranches.current,
        "current_branch",
        summary="Get the number of a session's current branch.",
    ),
    route(
        "POST",
        S + "/branches/{number}/switch",
        "branches",
        AsyncBranches.switch,
        "switch_branch",
        notifies="session_id",
    ),
    route(
        "POST",
        S + "/rewind",
        "branches",
        AsyncBranches.rewind,
        "rewind_session",
        area="branches",
        notifies="session_id",
    ),
    route("POST", S + "/redo", "branches", AsyncBranches.redo, "redo_session", area="branches", notifies="session_id"),
    # Compactions
    route("GET", S + "/compactions", "compactions", AsyncCompactions.history, "list_compactions"),
    route(
        "POST",
        S + "/compactions/plan",
        "compactions",
        AsyncCompactions.plan,
        "plan_compaction",
        need="read",
        leave_out=["strategy"],
        summary="Plan a compaction: what it would remove, and which messages need a summary. Nothing is changed.",
    ),
    route(
        "POST",
        S + "/compactions",
        "compactions",
        AsyncCompactions.compact,
        "create_compaction",
        leave_out=_FUNCTIONS,
        notifies="session_id",
        summary=(
            "Reduce a session's context.\n\nA compaction may need a summary from a model, which the server does not call: "
            "request the plan, have its `to_summarize` summarised, and send the text as `summary` together with the `plan`. "
            "The plan is carried out exactly as it was made, or refused. If removing old tool outputs is enough, no summary "
            "is needed."
        ),
    ),
    route(
        "POST",
        S + "/compactions/record",
        "compactions",
        AsyncCompactions.record,
        "record_compaction",
        summary="Record a compaction that was done elsewhere, with the originals of the removed messages.",
    ),
    route(
        "POST",
        T + "/compactions/{event_id}/archive",
        "compactions",
        AsyncCompactions.archive,
        "archive_messages",
        summary="Move more messages of a session to the archive of a recorded compaction.",
    ),
    route("GET", T + "/compactions/{event_id}", "compactions", AsyncCompactions.get, "get_compaction"),
    route(
        "POST", T + "/compactions/{event_id}/rollback", "compactions", AsyncCompactions.rollback, "roll_back_compaction"
    ),
    route(
        "GET", T + "/archive", "compactions", AsyncCompactions.archived, "list_archived_messages", area="compactions"
    ),
    route("GET", S + "/archive", "compactions", AsyncCompactions.search_archive, "search_archive", area="compactions"),
    route(
        "GET",
        S + "/compaction-policy",
        "compactions",
        AsyncCompactions.attached,
        "get_compaction_policy",
        area="compactions",
    ),
    route(
        "PUT",
        S + "/compaction-policy",
        "compactions",
        AsyncCompactions.attach,
        "set_compaction_policy",
        area="compactions",
        leave_out=[*_FUNCTIONS, "agent"],
        summary="Keep a session within its context window from now on, as far as no summary is needed.",
    ),
    route(
        "DELETE",
        S + "/compaction-policy",
        "compactions",
        AsyncCompactions.detach,
        "clear_compaction_policy",
        area="compactions",
        leave_out=["agent"],
    ),
    route(
        "PUT",
        T + "/compaction-policies/{agent}",
        "compactions",
        AsyncCompactions.attach,
        "set_agents_compaction_policy",
        area="compactions",
        leave_out=[*_FUNCTIONS, "session_id"],
        summary="Keep all sessions of an agent within their context window from now on, as far as no summary is needed.",
    ),
    route(
        "DELETE",
        T + "/compaction-policies/{agent}",
        "compactions",
        AsyncCompactions.detach,
        "clear_agents_compaction_policy",
        area="compactions",
        leave_out=["session_id"],
    ),
    # Pending messages
    route("GET", _PENDING, "pending_messages", AsyncPendingMessages.list_by_key, "list_pending_messages"),
    route("POST", _PENDING, "pending_messages", AsyncPendingMessages.append_batch, "append_pending_messages"),
    route("DELETE", _PENDING, "pending_messages", AsyncPendingMessages.delete_by_key, "delete_pending_messages"),
    route("GET", _PENDING + "/count", "pending_messages", AsyncPendingMessages.count_by_key, "count_pending_messages"),
    route("GET", _PENDING + "/groups", "pending_messages", AsyncPendingMessages.list_groups, "list_pending_groups"),
    route(
        "GET", _PENDING + "/count-all", "pending_messages", AsyncPendingMessages.count_all, "count_all_pending_messages"
    ),
    route("POST", _PENDING + "/compact", "pending_messages", AsyncPendingMessages.compact, "compact_pending_messages"),
    # Contacts
    route("GET", T + "/contacts", "contacts", AsyncContacts.list, "list_contacts"),
    route("GET", T + "/contacts/count", "contacts", AsyncContacts.count, "count_contacts", row=Contact),
    route("GET", T + "/contacts/{contact_id}", "contacts", AsyncContacts.get, "get_contact"),
    route("GET", T + "/contacts/by-sender/{channel_type}/{sender_id}", "contacts", AsyncContacts.find, "find_contact"),
    route(
        "PUT", T + "/contacts/by-sender/{channel_type}/{sender_id}", "contacts", AsyncContacts.upsert, "upsert_contact"
    ),
    route("POST", T + "/contacts/lookup", "contacts", AsyncContacts.get_many, "look_up_contacts", need="read"),
    route("POST", T + "/contacts/merge", "contacts", AsyncContacts.merge, "merge_contacts"),
    route("POST", T + "/contacts/unmerge", "contacts", AsyncContacts.unmerge, "unmerge_contacts"),
    # Feedback
    route("GET", T + "/feedback", "feedback", AsyncFeedbackStore.list, "list_feedback"),
    route("GET", T + "/feedback/count", "feedback", AsyncFeedbackStore.count, "count_feedback", row=Feedback),
    route("POST", T + "/messages/{message_id}/feedback", "feedback", AsyncFeedbackStore.create, "create_feedback"),
    route("PUT", T + "/messages/{message_id}/feedback", "feedback", AsyncFeedbackStore.upsert, "upsert_feedback"),
    route("GET", T + "/feedback/{feedback_id}", "feedback", AsyncFeedbackStore.get, "get_feedback"),
    route("PATCH", T + "/feedback/{feedback_id}", "feedback", AsyncFeedbackStore.update, "update_feedback"),
    route("DELETE", T + "/feedback/{feedback_id}", "feedback", AsyncFeedbackStore.delete, "delete_feedback"),
    # General feedback: not about a stored message
    *records(T + "/general-feedback", "general_feedback", AsyncGeneralFeedbackStore, area="feedback", within=["user"]),
]
