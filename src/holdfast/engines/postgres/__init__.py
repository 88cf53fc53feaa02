"""The engines on PostgreSQL, blocking and asynchronous."""
