"""Buffered sessions."""
