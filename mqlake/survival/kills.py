"""What is killed, and what brings it back."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from mqlake.errors import OperationalError
from mqlake.local.parts import LOG, STREAMING
from mqlake.local.testing import LocalSystem, await_condition
from mqlake.local.usage import members_of_sessions


def gateway_alone(system: LocalSystem, gateway: str) -> list[int]:
    return members_of_sessions(_sessions(system, gateway))


def log_alone(system: LocalSystem, _gateway: str) -> list[int]:
    return members_of_sessions(_sessions(system, LOG))


def spark_alone(system: LocalSystem, _gateway: str) -> list[int]:
    """Return its processes, Python and Java."""
    return members_of_sessions(_sessions(system, STREAMING))


def everything(system: LocalSystem, _gateway: str) -> list[int]:
    """Return all processes of the system, the supervisor first."""
    state = system.state()
    names = [process.name for process in state.processes if process.pid != state.pid]
    # Each child leads a session of its own; the supervisor's is that of its shell, perhaps ours.
    return [state.pid, *members_of_sessions(_sessions(system, *names))]


@contextmanager
def strike(_system: LocalSystem, pids: Sequence[int]) -> Iterator[float]:
    """Kill; the supervisor brings back what is gone."""
    yield kill_at_once(pids)


@contextmanager
def strike_and_start(system: LocalSystem, pids: Sequence[int]) -> Iterator[float]:
    """Kill, and start the system anew."""
    state = system.state()
    killed_at = kill_at_once(pids)
    leaders = set(pids) - {state.pid}
    kill_at_once(members_of_sessions(leaders))  # what they have started meanwhile
    await_condition(
        lambda: not state.is_alive and not members_of_sessions(leaders), "no process is left"
    )
    system.up()
    yield killed_at


@contextmanager
def strike_for_long(system: LocalSystem, pids: Sequence[int]) -> Iterator[float]:
    """Kill and keep dead until the end of the block: the supervisor is stopped meanwhile."""
    supervisor = system.state().pid
    os.kill(supervisor, signal.SIGSTOP)
    try:
        yield kill_at_once(pids)
    finally:
        os.kill(supervisor, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Kill:
    """One way to take something from a running system.

    Attributes:
        what: For people.
        targets: Takes the system and the name of a gateway; returns the processes to kill.
        strike: Takes the system and these; kills them at the start of a `with` block, gives it the
            time of that by `time.monotonic`, and has brought everything back, or has somebody else
            bring it back, after its end.
        moves: Clients go to another gateway when theirs does not answer.
    """

    what: str
    targets: Callable[[LocalSystem, str], list[int]]
    strike: Callable[[LocalSystem, Sequence[int]], AbstractContextManager[float]] = strike
    moves: bool = False


KILLS: Final[dict[str, Kill]] = {
    "gateway": Kill("a gateway", gateway_alone),
    "takeover": Kill("a gateway, for long", gateway_alone, strike_for_long, moves=True),
    "log": Kill("the log's broker", log_alone),
    "spark": Kill("Spark", spark_alone),
    "all": Kill("all processes", everything, strike_and_start),
}


def kill_at_once(pids: Sequence[int]) -> float:
    """Kill processes; return when.

    They are stopped first: a large process that dies takes the processor from us, and the others
    would go on without it for some milliseconds, which is another accident than that of all.
    """
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    return time.monotonic()


def _sessions(system: LocalSystem, *names: str) -> set[int]:
    """Return the sessions of these parts, each named by the process that leads it.

    Raises:
        OperationalError: One of them does not run.
    """
    pids = {process.name: process.pid for process in system.state().processes}
    found = set()
    for name in names:
        pid = pids.get(name)
        if pid is None:
            raise OperationalError(f"{name} does not run, so it cannot be killed")
        found.add(pid)
    return found
