"""What may go wrong in a simulation: faults by name, and the rules by which they happen.

======================  =============================================================================================
fault                   what happens
======================  =============================================================================================
``StorageWriteFail``    a write to a file fails after half of it
``StorageReadFail``     a read of a file fails
``StorageSyncFail``     a flush fails, and what it should have flushed never arrives
``StorageLatency``      an operation of the disk takes ``ms``
``StorageBusy``         another program is writing for longer than we wait, which is ``ms``
``DiskFull``            for ``ms`` there is no room: every write fails after half of it
``CrashBeforeWrite``    the process dies right before a write or a flush reaches the disk, or before a call is made
``CrashAfterWrite``     the process dies right after it, and nobody hears the answer
``TornWrite``           the process dies in the middle of a write
``PowerCut``            the machine loses power; what was not flushed is lost, torn, written out of order, or noise
``LostWrites``          the same, and all that was not flushed is lost
``TornWrites``          the same, and what was not flushed is there up to some sector and no further
``ReorderedWrites``     the same, and what was not flushed arrived in any order, some of it not at all
``ProcessDeath``        a process dies between two statements; it is started again later
``ProcessPause``        a process stands still for ``ms``, and does not notice
``ClockJump``           the clock of a process jumps, ahead or back, by ``ms``
``ClockSkew``           a process starts with a clock that is wrong, ahead or back, by ``ms``
``ToolFail``            a tool raises and has done nothing
``ToolLatency``         a tool takes ``ms``
======================  =============================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from types import MappingProxyType
from typing import Literal, get_args

from msgspec import Struct

from ...errors import InvalidInput

FaultName = Literal[
    "StorageWriteFail",
    "StorageReadFail",
    "StorageSyncFail",
    "StorageLatency",
    "StorageBusy",
    "DiskFull",
    "CrashBeforeWrite",
    "CrashAfterWrite",
    "TornWrite",
    "PowerCut",
    "LostWrites",
    "TornWrites",
    "ReorderedWrites",
    "ProcessDeath",
    "ProcessPause",
    "ClockJump",
    "ClockSkew",
    "ToolFail",
    "ToolLatency",
]
OperationKind = Literal[
    "lock", "read", "write", "truncate", "sync", "open", "delete", "call", "answer", "turn", "start", "tool"
]

_CHANGES: tuple[OperationKind, ...] = ("write", "truncate", "sync", "delete")
_CUTS: tuple[OperationKind, ...] = (*_CHANGES, "turn")
KINDS: Mapping[FaultName, tuple[OperationKind, ...]] = MappingProxyType(
    {
        "StorageWriteFail": ("write", "truncate"),
        "StorageReadFail": ("read",),
        "StorageSyncFail": ("sync",),
        "StorageLatency": ("read", "write", "sync"),
        "StorageBusy": ("lock",),
        "DiskFull": ("write",),
        "CrashBeforeWrite": (*_CHANGES, "call"),
        "CrashAfterWrite": (*_CHANGES, "answer"),
        "TornWrite": ("write",),
        "PowerCut": _CUTS,
        "LostWrites": _CUTS,
        "TornWrites": _CUTS,
        "ReorderedWrites": _CUTS,
        "ProcessDeath": ("turn",),
        "ProcessPause": ("turn",),
        "ClockJump": ("turn",),
        "ClockSkew": ("start",),
        "ToolFail": ("tool",),
        "ToolLatency": ("tool",),
    }
)
"""The operations that a fault can happen at."""
POWER_CUTS: frozenset[FaultName] = frozenset({"PowerCut", "LostWrites", "TornWrites", "ReorderedWrites"})
USUAL_MS: Mapping[FaultName, tuple[int, int]] = MappingProxyType(
    {
        "StorageLatency": (1, 2_000),
        "StorageBusy": (1_000, 30_000),
        "DiskFull": (100, 5_000),
        "ProcessPause": (1_000, 90_000),
        "ClockJump": (500, 900_000),
        "ClockSkew": (1, 20_000),
        "ToolLatency": (1_000, 60_000),
    }
)
"""How long a fault lasts, or how far it goes, where the rule does not say: from, to, in milliseconds."""


class Fault(Struct, frozen=True):
    """A rule by which a fault happens.

    ``probability`` is that of each operation it can happen at. ``on`` narrows these: a part of the operation as the trace has it,
    such as ``"sync sim.db-wal"`` or ``"call runs.step"``. The first ``after`` of them pass, and it happens ``at_most`` so often.
    """

    name: FaultName
    probability: float = 0.01
    on: str = ""
    after: int = 0
    at_most: int | None = None
    ms: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(FaultName):
            raise InvalidInput(f"there is no fault {self.name!r}; there are {', '.join(get_args(FaultName))}")
        if not 0 <= self.probability <= 1:
            raise InvalidInput(f"a probability is from 0 to 1, not {self.probability!r}")


class Struck(Struct, frozen=True):
    """A fault that happens now."""

    name: FaultName
    ms: int = 0


class Faults:
    """The rules of one simulation, and how often each has been met. The first rule that strikes wins."""

    def __init__(self, rules: Iterable[Fault], random: Random) -> None:
        self._random = random
        self._on = True
        self.happened: dict[str, int] = {}
        self._counted = [_Counted(rule) for rule in rules]
        self._by_kind: dict[str, list[_Counted]] = {}
        for each in self._counted:
            for kind in KINDS[each.rule.name]:
                self._by_kind.setdefault(kind, []).append(each)

    def stop(self) -> None:
        """From now on nothing goes wrong."""
        self._on = False

    def at(self, kind: OperationKind, what: str) -> Struck | None:
        """What goes wrong at this operation, if anything does."""
        rules = self._by_kind.get(kind) if self._on else None
        if not rules:
            return None
        for each in rules:
            if (not each.rule.on or each.rule.on in f"{kind} {what}") and self._strikes(each):
                self.happened[each.rule.name] = self.happened.get(each.rule.name, 0) + 1
                return Struck(each.rule.name, self._ms(each.rule))
        return None

    def _strikes(self, each: _Counted) -> bool:
        each.seen += 1
        if each.seen <= each.rule.after or (each.rule.at_most is not None and each.struck >= each.rule.at_most):
            return False
        if each.rule.probability < 1 and self._random.random() >= each.rule.probability:
            return False
        each.struck += 1
        return True

    def _ms(self, rule: Fault) -> int:
        between = rule.ms or USUAL_MS.get(rule.name)
        return 0 if between is None else self._random.randint(*between)


class _Counted:
    def __init__(self, rule: Fault) -> None:
        self.rule, self.seen, self.struck = rule, 0, 0


def mixed(probability: float, random: Random | None = None) -> list[Fault]:
    """Every fault there is, mixed: about as many, together, as ``probability`` says for each call of a store.

    With ``random`` only some of them, chosen by it, some often and some rarely: what is left out makes room for what is in.
    """
    names: list[FaultName] = [*get_args(FaultName)]
    if random is not None:
        names = [name for name in names if random.random() < 0.5]
    scale = {name: 1.0 if random is None else random.choice((0.2, 1.0, 3.0)) for name in names}
    return [Fault(name, min(1.0, probability * _SHARE[name] * scale[name])) for name in names]


_SHARE: Mapping[FaultName, float] = {
    # A call of a store is a dozen operations of the disk, a handful of turns, and few calls of tools.
    **dict.fromkeys(get_args(FaultName), 0.02),
    "StorageReadFail": 0.005,
    "StorageLatency": 0.05,
    "StorageBusy": 0.1,
    "DiskFull": 0.01,
    "PowerCut": 0.005,
    "LostWrites": 0.003,
    "TornWrites": 0.003,
    "ReorderedWrites": 0.003,
    "ProcessDeath": 0.03,
    "ProcessPause": 0.03,
    "ClockJump": 0.03,
    "ClockSkew": 5.0,
    "ToolFail": 0.5,
    "ToolLatency": 1.0,
}
