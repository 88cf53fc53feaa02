"""Compactions of sessions: plans, execution, the archive and rollbacks."""
