-- part: original @sqlite
-- A message "m" with its feedback as one JSON object. JSON columns are text in SQLite and stay text inside the object: parsing
-- them would not preserve every byte. Few sessions have feedback, so its existence is checked once.
json_object(
        'tenant_id', m.tenant_id, 'session_id', m.session_id, 'seq', m.seq, 'id', m.id, 'kind', m.kind, 'role', m.role,
        'content', m.content, 'token_count', m.token_count, 'metadata', m.metadata, 'is_preserved', m.is_preserved,
        'is_summary', m.is_summary, 'created_at', m.created_at, 'updated_at', m.updated_at,
        'feedback', CASE WHEN EXISTS (SELECT 1 FROM feedback WHERE tenant_id = :tenant_id AND session_id = :session_id)
        THEN json((
            SELECT json_group_array(json_object(
                'id', f.id, 'message_id', f.message_id, 'session_id', f.session_id, 'user_id', f.user_id,
                'is_positive', f.is_positive, 'feedback_text', f.feedback_text, 'issue_type', f.issue_type,
                'metadata', f.metadata, 'created_at', f.created_at, 'updated_at', f.updated_at))
            FROM feedback AS f WHERE f.tenant_id = :tenant_id AND f.message_id = m.id))
        ELSE json('[]') END)

-- part: original @postgres
to_jsonb(m) || jsonb_build_object('feedback', CASE
        WHEN EXISTS (SELECT 1 FROM feedback WHERE tenant_id = :tenant_id AND session_id = :session_id)
        THEN COALESCE((SELECT jsonb_agg(to_jsonb(f)) FROM feedback AS f
                       WHERE f.tenant_id = :tenant_id AND f.message_id = m.id), '[]'::jsonb)
        ELSE '[]'::jsonb END)

-- name: insert_feedback
INSERT INTO feedback (tenant_id, id, message_id, session_id, user_id, is_positive, feedback_text, issue_type, metadata,
                      created_at, updated_at)
VALUES (:tenant_id, :id, :message_id, :session_id, :user_id, :is_positive, :feedback_text, :issue_type, :metadata,
        :created_at, :updated_at);
