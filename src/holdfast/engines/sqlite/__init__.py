"""The engines on SQLite, blocking and asynchronous."""
