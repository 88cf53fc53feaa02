"""Tenants, API keys, retention, erasure and diagnostics."""
