DROP TABLE session_state;
