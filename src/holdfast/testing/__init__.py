"""Tools for testing agents: a simulator, a disk that fails on request, a scripted model, a fixed clock and seeded ids."""

from ..clock import FixedClock
from ..ids import SeededIds
from .disk import Disk
from .fakes import ScriptedModel

__all__ = ["Disk", "FixedClock", "ScriptedModel", "SeededIds"]
