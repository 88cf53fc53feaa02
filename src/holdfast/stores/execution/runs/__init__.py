"""Runs: their steps, leases and tool calls."""
