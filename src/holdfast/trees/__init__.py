"""Directory trees as data: walking, ignore rules, comparison, and storage of content.

Files only: nothing here knows about databases, event loops or tenants.
"""
