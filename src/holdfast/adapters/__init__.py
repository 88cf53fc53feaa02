"""Adapters for frameworks that store their state in Holdfast. Each translates between a framework and the public API, without
logic of its own. Holdfast itself imports none of them."""
