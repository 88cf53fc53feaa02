DROP TABLE search_progress;
DROP TABLE message_texts;
DROP INDEX sessions_search_behind;
UPDATE sessions SET search_behind = TRUE;
