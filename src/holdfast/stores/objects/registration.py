"""A tenant is registered by its first write."""

from ...core.registration import register_tenant

__all__ = ["register_tenant"]
