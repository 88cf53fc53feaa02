DROP TABLE compaction_policies;
DROP TABLE deleted_messages;
DROP TABLE message_archive;
DROP TABLE compaction_events;
