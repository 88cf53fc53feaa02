DROP TRIGGER messages_changed;
DROP TRIGGER messages_deleted;
DROP TABLE message_index_removed;
DROP TABLE message_index;
DROP TABLE search_progress;
DROP TABLE message_texts;
DROP INDEX sessions_search_behind;
UPDATE sessions SET search_behind = 1;
