DROP INDEX messages_system;
DROP TABLE session_state;
