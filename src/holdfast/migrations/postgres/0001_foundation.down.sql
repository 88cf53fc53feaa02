DROP TABLE messages;
DROP TABLE sessions;
DROP TABLE tenants;
