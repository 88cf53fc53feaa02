-- Feedback is hidden with its session: "(deleted_at IS NULL) IS TRUE", see sessions.sql.

-- name: session_of
-- The live session of a message; the message cannot be removed until the transaction ends.
SELECT m.session_id/*pg ::text*/ FROM messages AS m
JOIN sessions AS s ON s.tenant_id = m.tenant_id AND s.id = m.session_id
WHERE m.tenant_id = :tenant_id AND m.id = :message_id AND s.tenant_id = :tenant_id AND (s.deleted_at IS NULL) IS TRUE
/*pg FOR KEY SHARE OF m*/;

-- name: create
INSERT INTO feedback (tenant_id, id, message_id, session_id, user_id, is_positive, feedback_text, issue_type, metadata,
                      created_at, updated_at)
VALUES (:tenant_id, :id, :message_id, :session_id, :user_id, :is_positive, :feedback_text, :issue_type, :metadata,
        :now_at, :now_at)
ON CONFLICT DO NOTHING
RETURNING /*columns Feedback*/ *;

-- name: upsert
-- The only opinion of a user of a message.
INSERT INTO feedback (tenant_id, id, message_id, session_id, user_id, is_positive, feedback_text, issue_type, metadata,
                      created_at, updated_at)
VALUES (:tenant_id, :id, :message_id, :session_id, :user_id, :is_positive, :feedback_text, :issue_type, :metadata,
        :now_at, :now_at)
ON CONFLICT (tenant_id, message_id, user_id) WHERE user_id <> '' DO UPDATE SET
    is_positive = excluded.is_positive,
    feedback_text = excluded.feedback_text,
    issue_type = excluded.issue_type,
    metadata = excluded.metadata,
    updated_at = excluded.updated_at
RETURNING /*columns Feedback*/ *;

-- name: by_id
-- Any feedback with this id, visible or hidden.
SELECT /*columns Feedback*/ * FROM feedback WHERE tenant_id = :tenant_id AND id = :id;

-- name: update
-- Columns whose parameter is NULL keep their value.
UPDATE feedback SET
    is_positive = COALESCE(:is_positive, is_positive),
    feedback_text = COALESCE(:feedback_text, feedback_text),
    issue_type = COALESCE(:issue_type, issue_type),
    metadata = COALESCE(:metadata, metadata),
    updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :id
  AND EXISTS (SELECT 1 FROM sessions AS s
              WHERE s.tenant_id = :tenant_id AND s.id = feedback.session_id AND (s.deleted_at IS NULL) IS TRUE)
RETURNING /*columns Feedback*/ *;

-- name: delete
DELETE FROM feedback
WHERE tenant_id = :tenant_id AND id = :id
  AND EXISTS (SELECT 1 FROM sessions AS s
              WHERE s.tenant_id = :tenant_id AND s.id = feedback.session_id AND (s.deleted_at IS NULL) IS TRUE)
RETURNING id;
