"""What is done to a running system, and what brings it back."""

import contextlib
import itertools
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mqlake.errors import OperationalError
from mqlake.local.parts import LOG, STREAMING
from mqlake.local.ports import free_ports
from mqlake.local.testing import LocalSystem, await_condition
from mqlake.local.usage import members_of_sessions

Group = list[int]
"""Pids of processes that are struck at one moment."""

ROOM_BYTES: Final = 4096
"""No file of a full disk takes anything beyond these; one page of a store."""

FULL_SECONDS: Final = 30.0
"""How long a gateway may take to find that its disk is full."""

LOOK_SECONDS: Final = 0.02

REFUSAL_SECONDS: Final = 60.0
"""How long a second gateway of a name may take to refuse, the start of its process included."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a fault strikes.

    Attributes:
        system: Runs.
        gateway: The name of one of its gateways.
        groups: Are struck one after the other.
    """

    system: LocalSystem
    gateway: str
    groups: list[Group]


@dataclass(slots=True)
class Strike:
    """A fault that has struck.

    Attributes:
        at: When, by `time.monotonic`.
        problems: What did not go as it has to, one line each.
    """

    at: float
    problems: list[str] = field(default_factory=list)


Find = Callable[[LocalSystem, str], list[Group]]
How = Callable[[Target], AbstractContextManager[Strike]]


def the_gateway(system: LocalSystem, gateway: str) -> list[Group]:
    return [members_of_sessions(_sessions(system, gateway))]


def the_log(system: LocalSystem, _gateway: str) -> list[Group]:
    return [members_of_sessions(_sessions(system, LOG))]


def spark(system: LocalSystem, _gateway: str) -> list[Group]:
    """Return its processes, Python and Java."""
    return [members_of_sessions(_sessions(system, STREAMING))]


def spark_jvm(system: LocalSystem, gateway: str) -> list[Group]:
    [pids] = spark(system, gateway)
    found = [pid for pid in pids if _program(pid) == "java"]
    if not found:
        raise OperationalError("Spark has no JVM, so it cannot be paused")
    return [found]


def each_part(system: LocalSystem, _gateway: str) -> list[Group]:
    """Return a group for each part, without the supervisor."""
    state = system.state()
    names = [process.name for process in state.processes if process.pid != state.pid]
    return [members_of_sessions(_sessions(system, name)) for name in names]


def everything(system: LocalSystem, gateway: str) -> list[Group]:
    """Return all processes of the system in one group, the supervisor first."""
    # Each child leads a session of its own; the supervisor's is that of its shell, perhaps ours.
    parts = [pid for group in each_part(system, gateway) for pid in group]
    return [[system.state().pid, *parts]]


def nothing(_system: LocalSystem, _gateway: str) -> list[Group]:
    return []


@contextmanager
def kill(target: Target) -> Iterator[Strike]:
    """Kill; the supervisor brings back what is gone."""
    yield Strike(kill_at_once(target.groups[0]))


@contextmanager
def kill_and_start(target: Target) -> Iterator[Strike]:
    """Kill, and start the system anew."""
    [pids] = target.groups
    state = target.system.state()
    killed_at = kill_at_once(pids)
    leaders = set(pids) - {state.pid}
    kill_at_once(members_of_sessions(leaders))  # what they have started meanwhile
    await_condition(
        lambda: not state.is_alive and not members_of_sessions(leaders), "no process is left"
    )
    target.system.up()
    yield Strike(killed_at)


@contextmanager
def kill_for_long(target: Target) -> Iterator[Strike]:
    """Kill and keep dead until the end of the block: the supervisor is stopped meanwhile."""
    supervisor = target.system.state().pid
    os.kill(supervisor, signal.SIGSTOP)
    try:
        yield Strike(kill_at_once(target.groups[0]))
    finally:
        os.kill(supervisor, signal.SIGCONT)


def pause(seconds: float) -> How:
    """Return what stops each group for so long, and lets it go on before the next one stops."""

    @contextmanager
    def strike(target: Target) -> Iterator[Strike]:
        struck = Strike(time.monotonic())
        for pids in target.groups:
            try:
                _signal(pids, signal.SIGSTOP)
                time.sleep(seconds)
            finally:
                _signal(pids, signal.SIGCONT)
        yield struck

    return strike


def slow(seconds: float, stop_seconds: float) -> How:
    """Return what stops the groups in turn, each for a moment, for so long altogether."""

    @contextmanager
    def strike(target: Target) -> Iterator[Strike]:
        struck = Strike(time.monotonic())
        for pids in itertools.cycle(target.groups):
            if time.monotonic() >= struck.at + seconds:
                break
            try:
                _signal(pids, signal.SIGSTOP)
                time.sleep(stop_seconds)
            finally:
                _signal(pids, signal.SIGCONT)
            time.sleep(stop_seconds / 2)
        yield struck

    return strike


@contextmanager
def fill_store(target: Target) -> Iterator[Strike]:
    """Leave a gateway no room in any file, its store above all, as a full disk does.

    The limit is the process's own (RLIMIT_FSIZE): writing fails with EFBIG in place of ENOSPC, at
    the same calls, and no other part has less room for it. The gateway has to end, and the
    supervisor starts it anew, without the limit.
    """
    [pids] = target.groups
    struck = Strike(time.monotonic())
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (ROOM_BYTES, ROOM_BYTES))
    deadline = struck.at + FULL_SECONDS
    while time.monotonic() < deadline and any(map(_is_alive, pids)):
        time.sleep(LOOK_SECONDS)
    if any(map(_is_alive, pids)):
        struck.problems.append(
            f"{target.gateway} went on for {FULL_SECONDS:.0f} s with a full disk"
        )
    yield struck


@contextmanager
def double_name(target: Target) -> Iterator[Strike]:
    """Start another process with the gateway's name; it has to end by itself, and say why."""
    struck = Strike(time.monotonic())
    code, said = _run_double(target.system, target.gateway)
    refusal = f"another gateway named {target.gateway} is running"
    if code == 0 or code is None:
        struck.problems.append(f"the second {target.gateway}: exit code {code}, not refused")
    if refusal not in said:
        struck.problems.append(f"the second {target.gateway}: did not say '{refusal}'")
    yield struck


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that may happen to a running system.

    Attributes:
        what: For people.
        find: Takes the system and the name of a gateway; returns the processes to strike.
        how: Takes the target; strikes it at the start of a `with` block, which tells when that was,
            and has brought everything back, or has somebody else bring it back, after its end.
        back: Who brings it back, for people.
        seconds: How long it lasts before the block begins. Messages flow for longer.
        moves: Clients go to another gateway when theirs does not answer.
        is_quiet: No client may notice it: no connection breaks, no will comes.
        is_usual: Part of the set that runs when nobody chooses.
    """

    what: str
    find: Find
    how: How
    back: str
    seconds: float = 0.0
    moves: bool = False
    is_quiet: bool = False
    is_usual: bool = True


def _pause(what: str, find: Find, seconds: float, **more: bool) -> Fault:
    settings = {"is_quiet": True, "is_usual": False} | more
    return Fault(f"pause {what}", find, pause(seconds), "goes on by itself", seconds, **settings)


_EACH_SECONDS: Final = 2.0
_PARTS: Final = 7  # with three gateways, the most that are usual
_SLOW_SECONDS: Final = 20.0

FAULTS: Final[dict[str, Fault]] = {
    "gateway": Fault("kill a gateway", the_gateway, kill, "the supervisor"),
    "takeover": Fault("kill a gateway, for long", the_gateway, kill_for_long, "nobody", moves=True),
    "log": Fault("kill the log's broker", the_log, kill, "the supervisor"),
    "spark": Fault("kill Spark", spark, kill, "the supervisor"),
    "all": Fault("kill all processes", everything, kill_and_start, "bin/mqlake up"),
    "pause-gateway-1": _pause("a gateway for 1 s", the_gateway, 1),
    "pause-gateway-5": _pause("a gateway for 5 s", the_gateway, 5, is_usual=True),
    "pause-gateway-20": _pause("a gateway for 20 s", the_gateway, 20, moves=True, is_quiet=False),
    "pause-spark-1": _pause("Spark's JVM for 1 s", spark_jvm, 1),
    "pause-spark-5": _pause("Spark's JVM for 5 s", spark_jvm, 5),
    "pause-spark-20": _pause("Spark's JVM for 20 s", spark_jvm, 20),
    "pause-log-1": _pause("the log's broker for 1 s", the_log, 1),
    "pause-log-5": _pause("the log's broker for 5 s", the_log, 5),
    "pause-log-20": _pause("the log's broker for 20 s", the_log, 20, is_quiet=False),
    "pause-all": Fault(
        "pause each part in turn for 2 s",
        each_part,
        pause(_EACH_SECONDS),
        "goes on by itself",
        _PARTS * _EACH_SECONDS,
        is_quiet=True,
        is_usual=False,
    ),
    "slow-parts": Fault(
        "stop each part in turn for 0.3 s, for 20 s",
        each_part,
        slow(_SLOW_SECONDS, 0.3),
        "goes on by itself",
        _SLOW_SECONDS,
        is_quiet=True,
        is_usual=False,
    ),
    "full-store": Fault(
        "fill the disk under a gateway's store", the_gateway, fill_store, "the supervisor"
    ),
    "doubled-name": Fault(
        "start a second gateway of a name",
        nothing,
        double_name,
        "nothing is gone",
        seconds=5,
        is_quiet=True,
    ),
}

USUAL: Final = tuple(name for name, fault in FAULTS.items() if fault.is_usual)


def kill_at_once(pids: Sequence[int]) -> float:
    """Kill processes; return when.

    They are stopped first: a large process that dies takes the processor from us, and the others
    would go on without it for some milliseconds, which is another accident than that of all.
    """
    for number in (signal.SIGSTOP, signal.SIGKILL):
        _signal(pids, number)
    return time.monotonic()


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _run_double(system: LocalSystem, gateway: str) -> tuple[int | None, str]:
    """Run a gateway's program once more, with all it was given but what it cannot share.

    Returns:
        Its exit code, None when it did not end and was killed, and what it said.
    """
    [pid] = _sessions(system, gateway)
    command, environment = (
        Path(f"/proc/{pid}/{file}").read_bytes().decode().rstrip("\0").split("\0")
        for file in ("cmdline", "environ")
    )
    name = f"second-{gateway}"
    port, metrics_port = free_ports(2)
    log = system.data_dir / "logs" / f"{name}.log"
    own = {
        "MQLAKE_GATEWAY_PORT": str(port),
        "MQLAKE_GATEWAY_METRICS__PORT": str(metrics_port),
        "MQLAKE_GATEWAY_LISTENERS": "[]",
        "MQLAKE_GATEWAY_STORE_DIR": str(system.data_dir / "gateways" / name),
        "MQLAKE_GATEWAY_HEARTBEAT_FILE": str(system.data_dir / "run" / f"{name}.json"),
        "MQLAKE_GATEWAY_LOG_FILE": str(log),
    }
    log.unlink(missing_ok=True)
    try:
        result = subprocess.run(
            command,
            cwd=system.data_dir,
            env=dict(one.split("=", 1) for one in environment) | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=REFUSAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    written = log.read_text(encoding="utf-8") if log.is_file() else ""
    return result.returncode, result.stdout + written


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


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
            raise OperationalError(f"{name} does not run, so nothing can be done to it")
        found.add(pid)
    return found
