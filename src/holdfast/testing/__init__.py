"""What a test of an agent needs: the simulator, the faulty disk, a scripted model, a fixed clock and repeatable ids."""

from ..clock import FixedClock
from ..ids import SeededIds
from .disk import Disk
from .fakes import ScriptedModel

__all__ = ["Disk", "FixedClock", "ScriptedModel", "SeededIds"]
