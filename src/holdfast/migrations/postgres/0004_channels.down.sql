DROP TABLE feedback;
DROP TABLE contacts;
DROP TABLE pending_messages;
DROP TABLE pending_groups;
