DROP TABLE compaction_policies;
DROP TABLE message_archive;
DROP TABLE compaction_events;
