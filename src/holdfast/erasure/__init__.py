"""Erasure requests (right to be forgotten) that arrive as events of a Redis stream: recorded, then carried out in time."""

from .consumer import ErasureConsumer
from .events import ErasureRequest, read_event

__all__ = ["ErasureConsumer", "ErasureRequest", "read_event"]
