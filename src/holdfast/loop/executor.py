"""Driving a loop in the thread that is here.

The model is asked and tools are called in the caller's own thread, except those that may be called at once: each of them has a
thread. Meanwhile a thread renews the lease. Nothing can stop a function that blocks; so when the lease is lost, that is seen
when the function returns, and nothing is written from then on. A tool can ask sooner: ``Call.is_lost``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from holdfast import TenantHandle
from holdfast.clock import from_us, pause
from holdfast.errors import Conflict, Fenced, HoldfastError, NotFound, OutcomeUnknown, Unavailable
from holdfast.types import Run

from . import commands as do
from .commands import Command, StoreCommand
from .core import Driving
from .events import Ending, Failure
from .plan import Plan, log
from .tool_execution import finished, in_thread, make_call
from .tools import Answer, Call, batches

TRIES = 5
"""How often a store is asked while its database cannot be reached or its answer is lost."""
FIRST_PAUSE_S = 0.05
"""Seconds before the second try; before each further one twice as many."""
BEATS = 3
"""How often a lease is renewed while it lasts."""


def carry_on(
    plan: Plan, acme: TenantHandle, driving: Driving[Ending], run: Run | None, go_on: Callable[[], bool]
) -> Ending:
    """Carry out what a loop wants done, until it has come to its end."""
    hands = Hands(plan, acme, run, go_on)
    answer: Any = None
    error: HoldfastError | None = None
    try:
        while True:
            command = driving.send(answer) if error is None else driving.throw(error)
            answer, error = None, None
            try:
                answer = hands.carry_out(command)
            except HoldfastError as raised:
                error = raised
    except StopIteration as done:
        ending: Ending = done.value
        return ending
    except Exception:
        raise  # the lease is left to run out: that counts as an attempt, so it is not tried for ever
    except BaseException:
        hands.release()
        raise
    finally:
        hands.rest()


class Hands:
    """What carries out commands, one after the other."""

    def __init__(self, plan: Plan, acme: TenantHandle, run: Run | None, go_on: Callable[[], bool]) -> None:
        self._plan, self._acme, self._go_on = plan, acme, go_on
        self._heart: Heart | None = None
        self._run = run

    def carry_out(self, command: Command) -> Any:
        """One command."""
        if isinstance(command, do.LONG):
            return self._kept(command)
        if isinstance(command, StoreCommand):
            answer = self._store(command)
            if isinstance(command, do.ClaimRun):
                self._run = answer
            return answer
        if isinstance(command, do.Now):
            return from_us(self._acme.clock.now_us())
        if isinstance(command, do.GoOn):
            return self._go_on()
        assert isinstance(command, do.Tell)
        return self._plan.tell(command.event)

    def release(self) -> None:
        """Hand the run over, if it is held and the database can be reached."""
        if self._run is not None:
            try:
                self._acme.leases.release(self._run.id, epoch=self._run.epoch)
            except HoldfastError as error:
                log.debug("run %s was not released: %s", self._run.id, error)

    def rest(self) -> None:
        """Nothing more comes."""
        if self._heart is not None:
            self._heart.stop()

    def is_lost(self) -> bool:
        """Whether somebody else drives the run."""
        return self._heart is not None and self._heart.lost is not None

    def _store(self, command: StoreCommand) -> Any:
        for tried in range(1, TRIES + 1):
            try:
                return command.on(self._acme)
            except (Unavailable, OutcomeUnknown) as error:
                if tried == TRIES or (isinstance(error, OutcomeUnknown) and isinstance(command, do.ClaimRun)):
                    raise
                pause(wait_s(tried))
        return None

    def _kept(self, command: Command) -> Any:
        """Something that may take longer than the lease lasts."""
        assert self._run is not None
        if self._heart is None:
            self._heart = Heart(self._acme, self._run)
            self._heart.start()
        with self._heart:
            answer = self._long(command)
        if self._heart.lost is not None:
            raise Fenced(f"run {self._run.id} was lost: {self._heart.lost}")
        return answer

    def _long(self, command: Command) -> Any:
        if isinstance(command, do.AskModel):
            try:
                return finished(self._plan.model(command.turn))
            except Exception as error:
                return Failure(error)
        if isinstance(command, do.CallTools):
            return self._call_tools(command)
        if isinstance(command, do.Sleep):
            return pause(command.seconds)
        assert isinstance(command, StoreCommand)
        return command.on(self._acme)

    def _call_tools(self, command: do.CallTools) -> list[Answer]:
        assert self._run is not None
        tools = dict(self._plan.tools)
        answers: list[Answer] = []
        for together in batches(calls_of(self._plan, command, self._run, self._acme, self.is_lost)):
            calls = [call for _, call in together]
            if len(calls) == 1:
                answers.append(make_call(tools, calls[0]))
                continue
            futures = [in_thread(lambda call=call: make_call(tools, call)) for call in calls]  # type: ignore[misc]
            answers += [future.result() for future in futures]
        return answers


class Heart(threading.Thread):
    """Renews a lease while something takes its time; inside ``with``."""

    def __init__(self, acme: TenantHandle, run: Run) -> None:
        super().__init__(name=f"holdfast-heart-{run.id}", daemon=True)
        self._acme, self._run = acme, run
        self._every_s = run.lease_ms / 1_000 / BEATS
        self._is_busy, self._ended = False, threading.Event()
        self.lost: HoldfastError | None = None

    def __enter__(self) -> None:
        self._is_busy = True

    def __exit__(self, *_: object) -> None:
        self._is_busy = False

    def run(self) -> None:
        """Renew the lease as long as there is somebody to renew it for."""
        while not self._ended.wait(self._every_s):
            if self._is_busy:
                try:
                    self._acme.leases.renew(self._run.id, epoch=self._run.epoch)
                except (Conflict, NotFound) as error:
                    self.lost = error
                    return
                except HoldfastError as error:
                    log.warning("the lease of run %s was not renewed: %s", self._run.id, error)

    def stop(self) -> None:
        """Renew it no more."""
        self._ended.set()
        self.join(timeout=self._every_s)


def calls_of(
    plan: Plan, command: do.CallTools, run: Run, acme: Any, is_lost: Callable[[], bool]
) -> list[tuple[Any, Call]]:
    """The calls of a command with what their tools are handed."""
    return [
        (plan.tools.get(each.name), Call(each.id, each.name, each.input, run, each.attempt, acme, is_lost))
        for each in command.calls
    ]


def wait_s(tried: int) -> float:
    """Seconds to wait after so many tries."""
    return float(FIRST_PAUSE_S * 2 ** (tried - 1))
