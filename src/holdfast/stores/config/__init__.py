"""Configuration of a tenant, such as its model providers."""
