"""The right to be forgotten: requests that arrive as events of a Redis stream, written down and carried out in time."""

from .consumer import ErasureConsumer
from .events import ErasureRequest, read_event

__all__ = ["ErasureConsumer", "ErasureRequest", "read_event"]
