"""Adapters: frameworks that keep their state in Holdfast. Each translates between a framework and the public names, and decides
nothing. None is imported by Holdfast itself."""
