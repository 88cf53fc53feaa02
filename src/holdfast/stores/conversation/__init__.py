"""Sessions, messages, and everything else that belongs to a conversation."""
