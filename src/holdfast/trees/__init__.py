"""Directory trees as data: walking them, what of them is ignored, what has changed, and how their content is written down.

Files only: nothing here knows a database, an event loop or a tenant.
"""
