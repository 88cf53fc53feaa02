DROP TABLE run_queue;
DROP TABLE tool_calls;
DROP TABLE run_steps;
DROP TABLE runs;
