"""Drivers: wrappers for the database connections that callers bring, one module for each library."""
