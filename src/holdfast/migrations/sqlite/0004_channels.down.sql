DROP TABLE feedback;
DROP TABLE contacts;
DROP TABLE pending_messages;
