-- What is not on the first branch cannot be said in the older schema.
DELETE FROM messages WHERE seq >= 1099511627776;
UPDATE sessions SET next_seq = (
    SELECT next_seq FROM branches
    WHERE branches.tenant_id = sessions.tenant_id AND branches.session_id = sessions.id AND branches.number = 0
) WHERE branch <> 0;
UPDATE sessions SET
    message_count = (
        SELECT COUNT(*) FROM messages
        WHERE messages.tenant_id = sessions.tenant_id AND messages.session_id = sessions.id
    ),
    token_count = (
        SELECT COALESCE(SUM(messages.token_count), 0) FROM messages
        WHERE messages.tenant_id = sessions.tenant_id AND messages.session_id = sessions.id
    )
WHERE branch <> 0 OR view IS NOT NULL;
DROP TABLE branches;
ALTER TABLE sessions DROP COLUMN compact_from;
ALTER TABLE sessions DROP COLUMN search_behind;
ALTER TABLE sessions DROP COLUMN view;
ALTER TABLE sessions DROP COLUMN blocks;
ALTER TABLE sessions DROP COLUMN branch;
