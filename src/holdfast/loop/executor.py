"""Drives a loop in the calling thread.

The model and tools run in the caller's own thread, except tool calls that run in parallel: each of them has its own thread.
Another thread renews the lease. A function that blocks cannot be interrupted, so a lost lease is noticed when the function
returns; nothing is written after that. A tool can check earlier with ``Call.is_lost``.
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
from .commands import Command, CommandGenerator, StoreCommand
from .config import LoopConfig, log
from .events import Ending, ModelFailure
from .tool_execution import make_call, resolve, run_in_thread
from .tools import Call, CallAnswer, parallel_batches

MAX_TRIES = 5
"""How often a store command is tried while the database is unreachable or its answer is lost."""
FIRST_RETRY_S = 0.05
"""Seconds before the second try; doubled before each further one."""
RENEWALS_PER_LEASE = 3
"""How often a lease is renewed during its duration."""


def run_loop(
    config: LoopConfig,
    tenant: TenantHandle,
    generator: CommandGenerator[Ending],
    run: Run | None,
    should_continue: Callable[[], bool],
) -> Ending:
    """Carry out the loop's commands until it ends."""
    executor = Executor(config, tenant, run, should_continue)
    answer: Any = None
    error: HoldfastError | None = None
    try:
        while True:
            command = generator.send(answer) if error is None else generator.throw(error)
            answer, error = None, None
            try:
                answer = executor.carry_out(command)
            except HoldfastError as raised:
                error = raised
    except StopIteration as stop:
        ending: Ending = stop.value
        return ending
    except Exception:
        raise  # let the lease expire: that counts as an attempt, so the run is not retried without end
    except BaseException:
        executor.release()
        raise
    finally:
        executor.close()


class Executor:
    """Carries out commands one after the other."""

    def __init__(
        self, config: LoopConfig, tenant: TenantHandle, run: Run | None, should_continue: Callable[[], bool]
    ) -> None:
        self._config, self._tenant, self._should_continue = config, tenant, should_continue
        self._renewer: LeaseRenewer | None = None
        self._run = run

    def carry_out(self, command: Command) -> Any:
        """Carry out one command and return its result."""
        if isinstance(command, do.LONG_COMMANDS):
            return self._with_lease(command)
        if isinstance(command, StoreCommand):
            answer = self._call_store(command)
            if isinstance(command, do.ClaimRun):
                self._run = answer
            return answer
        if isinstance(command, do.Now):
            return from_us(self._tenant.clock.now_us())
        if isinstance(command, do.ShouldContinue):
            return self._should_continue()
        assert isinstance(command, do.EmitEvent)
        return self._config.tell(command.event)

    def release(self) -> None:
        """Release the run if it is held and the database can be reached."""
        if self._run is not None:
            try:
                self._tenant.leases.release(self._run.id, epoch=self._run.epoch)
            except HoldfastError as error:
                log.debug("cannot release run %s: %s", self._run.id, error)

    def close(self) -> None:
        """Stop renewing the lease."""
        if self._renewer is not None:
            self._renewer.stop()

    def is_lost(self) -> bool:
        """Whether this process has lost the lease of the run."""
        return self._renewer is not None and self._renewer.error is not None

    def _call_store(self, command: StoreCommand) -> Any:
        for attempt in range(1, MAX_TRIES + 1):
            try:
                return command.on(self._tenant)
            except (Unavailable, OutcomeUnknown) as error:
                if attempt == MAX_TRIES or (isinstance(error, OutcomeUnknown) and isinstance(command, do.ClaimRun)):
                    raise
                pause(retry_delay_s(attempt))
        return None

    def _with_lease(self, command: Command) -> Any:
        """Carry out a command that may take longer than the lease lasts, and renew the lease during it."""
        assert self._run is not None
        if self._renewer is None:
            self._renewer = LeaseRenewer(self._tenant, self._run)
            self._renewer.start()
        with self._renewer:
            answer = self._carry_out_long(command)
        if self._renewer.error is not None:
            raise Fenced(f"the lease of run {self._run.id} was lost: {self._renewer.error}")
        return answer

    def _carry_out_long(self, command: Command) -> Any:
        if isinstance(command, do.AskModel):
            try:
                return resolve(self._config.model(command.turn))
            except Exception as error:
                return ModelFailure(error)
        if isinstance(command, do.CallTools):
            return self._call_tools(command)
        if isinstance(command, do.Sleep):
            return pause(command.seconds)
        assert isinstance(command, StoreCommand)
        return command.on(self._tenant)

    def _call_tools(self, command: do.CallTools) -> list[CallAnswer]:
        assert self._run is not None
        tools = dict(self._config.tools)
        answers: list[CallAnswer] = []
        for batch in parallel_batches(calls_of(self._config, command, self._run, self._tenant, self.is_lost)):
            calls = [call for _, call in batch]
            if len(calls) == 1:
                answers.append(make_call(tools, calls[0]))
                continue
            futures = [run_in_thread(lambda call=call: make_call(tools, call)) for call in calls]  # type: ignore[misc]
            answers += [future.result() for future in futures]
        return answers


class LeaseRenewer(threading.Thread):
    """Thread that renews a lease while a long command runs: inside the ``with`` block."""

    def __init__(self, tenant: TenantHandle, run: Run) -> None:
        super().__init__(name=f"holdfast-lease-{run.id}", daemon=True)
        self._tenant, self._run = tenant, run
        self._interval_s = run.lease_ms / 1_000 / RENEWALS_PER_LEASE
        self._is_busy, self._stopped = False, threading.Event()
        self.error: HoldfastError | None = None
        """The error that says why the lease was lost."""

    def __enter__(self) -> None:
        self._is_busy = True

    def __exit__(self, *_: object) -> None:
        self._is_busy = False

    def run(self) -> None:
        """Renew the lease until stopped or until the lease is lost."""
        while not self._stopped.wait(self._interval_s):
            if self._is_busy:
                try:
                    self._tenant.leases.renew(self._run.id, epoch=self._run.epoch)
                except (Conflict, NotFound) as error:
                    self.error = error
                    return
                except HoldfastError as error:
                    log.warning("cannot renew the lease of run %s: %s", self._run.id, error)

    def stop(self) -> None:
        """Stop renewing, and wait for the thread to end."""
        self._stopped.set()
        self.join(timeout=self._interval_s)


def calls_of(
    config: LoopConfig, command: do.CallTools, run: Run, tenant: Any, is_lost: Callable[[], bool]
) -> list[tuple[Any, Call]]:
    """Return each call of a command as its tool, if it exists, and the ``Call`` to pass to it."""
    return [
        (config.tools.get(call.name), Call(call.id, call.name, call.input, run, call.attempt, tenant, is_lost))
        for call in command.calls
    ]


def retry_delay_s(failures: int) -> float:
    """Return the seconds to wait after that number of failed tries."""
    return float(FIRST_RETRY_S * 2 ** (failures - 1))
