"""Faults of a simulation, by name, and the rules that trigger them.

======================  =============================================================================================
fault                   what happens
======================  =============================================================================================
``StorageWriteFail``    a write to a file fails after half of it
``StorageReadFail``     a read of a file fails
``StorageSyncFail``     a flush fails, and the data that it should have flushed is never written
``StorageLatency``      an operation of the disk takes ``ms``
``StorageBusy``         another program holds the write lock for longer than the busy timeout, after ``ms``
``DiskFull``            the disk is full for ``ms``: every write fails after half of it
``CrashBeforeWrite``    the process dies just before a write or a flush reaches the disk, or before a call is made
``CrashAfterWrite``     the process dies just after that, and the answer is lost
``TornWrite``           the process dies in the middle of a write
``PowerCut``            the machine loses power; unflushed data is lost, torn, reordered, or replaced by noise
``LostWrites``          the same, and all unflushed data is lost
``TornWrites``          the same, and unflushed data is present up to some sector
``ReorderedWrites``     the same, and any subset of the unflushed sectors is present
``ProcessDeath``        a process dies between two statements and is restarted later
``ProcessPause``        a process is suspended for ``ms`` without noticing it
``ClockJump``           the clock of a process jumps forward or back by ``ms``
``ClockSkew``           a process starts with a clock that is fast or slow by ``ms``
``ToolFail``            a tool raises without having had an effect
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
"""The operations at which a fault can occur."""
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
"""Default range of a fault's duration or clock offset in milliseconds, if the rule has none."""


class Fault(Struct, frozen=True):
    """A rule that triggers a fault.

    ``probability`` applies to each operation at which the fault can occur. ``on`` restricts these to operations whose text in
    the trace contains it, such as ``"sync sim.db-wal"`` or ``"call runs.step"``. The first ``after`` matching operations
    succeed, and the fault occurs at most ``at_most`` times.
    """

    name: FaultName
    probability: float = 0.01
    on: str = ""
    after: int = 0
    at_most: int | None = None
    ms: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(FaultName):
            raise InvalidInput(
                f"unknown fault {self.name!r}; known faults: {', '.join(get_args(FaultName))}", field="name"
            )
        if not 0 <= self.probability <= 1:
            raise InvalidInput(f"probability must be from 0 to 1, not {self.probability!r}", field="probability")


class FaultHit(Struct, frozen=True):
    """A fault that occurs at the current operation."""

    name: FaultName
    ms: int = 0


class Faults:
    """The rules of a simulation with their counters. The first rule that triggers wins."""

    def __init__(self, rules: Iterable[Fault], random: Random) -> None:
        self._random = random
        self._on = True
        self.happened: dict[str, int] = {}
        self._by_kind: dict[str, list[_CountedRule]] = {}
        for counted in [_CountedRule(rule) for rule in rules]:
            for kind in KINDS[counted.rule.name]:
                self._by_kind.setdefault(kind, []).append(counted)

    def stop(self) -> None:
        """Trigger no more faults."""
        self._on = False

    def at(self, kind: OperationKind, what: str) -> FaultHit | None:
        """Return the fault that occurs at this operation, if any."""
        rules = self._by_kind.get(kind) if self._on else None
        if not rules:
            return None
        for counted in rules:
            rule = counted.rule
            if (not rule.on or rule.on in f"{kind} {what}") and self._triggers(counted):
                self.happened[rule.name] = self.happened.get(rule.name, 0) + 1
                return FaultHit(rule.name, self._ms(rule))
        return None

    def _triggers(self, counted: _CountedRule) -> bool:
        rule = counted.rule
        counted.matched += 1
        if counted.matched <= rule.after or (rule.at_most is not None and counted.triggered >= rule.at_most):
            return False
        if rule.probability < 1 and self._random.random() >= rule.probability:
            return False
        counted.triggered += 1
        return True

    def _ms(self, rule: Fault) -> int:
        between = rule.ms or USUAL_MS.get(rule.name)
        return 0 if between is None else self._random.randint(*between)


class _CountedRule:
    def __init__(self, rule: Fault) -> None:
        self.rule, self.matched, self.triggered = rule, 0, 0


def mixed(probability: float, random: Random | None = None) -> list[Fault]:
    """Return rules for every kind of fault, which together trigger with about ``probability`` in each call of a store.

    With ``random``, return a random subset with random frequencies, so that rare combinations occur too.
    """
    names: list[FaultName] = [*get_args(FaultName)]
    if random is not None:
        names = [name for name in names if random.random() < 0.5]
    scale = {name: 1.0 if random is None else random.choice((0.2, 1.0, 3.0)) for name in names}
    return [Fault(name, min(1.0, probability * _SHARE[name] * scale[name])) for name in names]


_SHARE: Mapping[FaultName, float] = {
    # A call of a store takes a dozen disk operations, a few suspensions, and few tool calls.
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
