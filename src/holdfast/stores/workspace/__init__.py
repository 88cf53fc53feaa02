"""Snapshots of workspaces, and rewinds of runs."""
