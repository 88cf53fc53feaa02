"""Migrations of the schema: numbered files, and the runner that applies and reverts them."""
