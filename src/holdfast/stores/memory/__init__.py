"""Memories of agents and crews, found by similarity."""
