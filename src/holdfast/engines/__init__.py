"""Engines: they run the calls of stores on SQLite or PostgreSQL."""
