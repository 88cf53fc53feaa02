"""Retention of snapshots: policies, holds, quotas and sweeps."""
