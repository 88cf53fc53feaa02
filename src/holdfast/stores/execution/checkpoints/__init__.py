"""Checkpoints of graphs, whose states share pieces."""
