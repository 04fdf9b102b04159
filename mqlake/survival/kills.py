"""What is killed, and what brings it back."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from mqlake.local.parts import LOG, STREAMING
from mqlake.local.testing import LocalSystem, await_condition
from mqlake.local.usage import members_of_sessions


@dataclass(frozen=True, slots=True)
class Kill:
    """One way to hurt a running system with SIGKILL.

    Attributes:
        what: For people.
        strike: Takes the system and the name of a gateway; kills at the start of a `with` block,
            and has brought everything back, or has somebody else bring it back, after its end.
        moves: Clients go to another gateway when theirs does not answer.
    """

    what: str
    strike: Callable[[LocalSystem, str], AbstractContextManager[None]]
    moves: bool = False


def kill_part(system: LocalSystem, name: str) -> None:
    """Kill a process of the system and all that it started."""
    (leader,) = [process.pid for process in system.state().processes if process.name == name]
    if leader is not None:
        _kill(members_of_sessions({leader}))


@contextmanager
def strike_gateway(system: LocalSystem, gateway: str) -> Iterator[None]:
    """Kill a gateway; the supervisor starts it again."""
    kill_part(system, gateway)
    yield


@contextmanager
def strike_log(system: LocalSystem, _gateway: str) -> Iterator[None]:
    """Kill the log's broker; the supervisor starts it again."""
    kill_part(system, LOG)
    yield


@contextmanager
def strike_spark(system: LocalSystem, _gateway: str) -> Iterator[None]:
    """Kill the Spark application, Python and Java; the supervisor starts it again."""
    kill_part(system, STREAMING)
    yield


@contextmanager
def strike_all(system: LocalSystem, _gateway: str) -> Iterator[None]:
    """Kill everything, the supervisor first, and start the system anew."""
    state = system.state()
    # Each child leads a session of its own; the supervisor's is that of its shell, perhaps ours.
    pids = {process.pid for process in state.processes} - {None, state.pid}
    sessions = {pid for pid in pids if pid is not None}
    _kill([state.pid, *members_of_sessions(sessions)])
    await_condition(
        lambda: not state.is_alive and not members_of_sessions(sessions), "no process is left"
    )
    system.up()
    yield


@contextmanager
def strike_for_long(system: LocalSystem, gateway: str) -> Iterator[None]:
    """Kill a gateway and keep it dead until the end of the block: its supervisor is stopped."""
    supervisor = system.state().pid
    os.kill(supervisor, signal.SIGSTOP)
    try:
        kill_part(system, gateway)
        yield
    finally:
        os.kill(supervisor, signal.SIGCONT)


KILLS: Final[dict[str, Kill]] = {
    "gateway": Kill("a gateway", strike_gateway),
    "takeover": Kill("a gateway, its clients go to the other", strike_for_long, moves=True),
    "log": Kill("the log's broker", strike_log),
    "spark": Kill("the Spark application", strike_spark),
    "all": Kill("every process, the supervisor too", strike_all),
}


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
