"""Runs of agents, and the saved states of frameworks."""
