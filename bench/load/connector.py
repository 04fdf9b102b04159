"""Run the program that opens connections."""

import json
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bench.load.loader import Latency
from mqlake.errors import OperationalError

CYCLES_SECONDS: Final = 120.0
"""Limit of a run of cycles."""

END_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Cycles:
    """Connections that were opened, accepted and closed again."""

    cycles: int
    seconds: float
    per_second: float
    present: int
    """Sessions that the gateway had."""
    connack_ms: Latency
    """From the begin of the TCP connection to CONNACK."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names of clients that may have been there before: a prefix and a number."""

    prefix: str
    first: int = 0
    stride: int = 1


@dataclass(frozen=True, slots=True)
class BenchLogins:
    """Users of clients: `user-0`, `user-1` and so on, in turn."""

    users: int
    password: str


@dataclass(frozen=True, slots=True)
class Cycle:
    """Acts of a client between CONNECT and the end of its connection.

    Attributes:
        levels: Protocol levels, a digit each; clients take turns.
        keep: Whether its session outlives its connection.
        subscribe: Whether it subscribes to a filter of its own.
    """

    levels: str = "345"
    keep: bool = False
    subscribe: bool = False


class HeldConnections:
    """MQTT 3.1.1 connections that are open and do nothing."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def subscribe(self) -> None:
        """Have each subscribe to a filter of its own.

        Raises:
            OperationalError: Not all could.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("subscribe\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it says why
        self.expect("subscribed")

    def expect(self, what: str) -> None:
        """Wait until the program says that it has done something with all connections."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise _gave_up(self._process.communicate()[1], self._process.returncode)
        if what not in json.loads(line):
            raise OperationalError(f"the connector says {line.strip()}, expected {what}")


def run_cycles(
    command: Sequence[str],
    to: Sequence[str],
    *,
    cycles: int,
    in_flight: int = 100,
    cycle: Cycle = Cycle(),
    names: Names | None = None,
    login: BenchLogins | None = None,
) -> Cycles:
    """Have clients go from CONNECT to the end of their connection, many at once.

    Args:
        command: The connector without options.
        to: host:port of gateways; clients take turns.
        cycles: How many clients.
        in_flight: How many of them at once.
        cycle: What each does.
        names: Client identifiers; None: new ones.
        login: Their users; None: none.

    Raises:
        OperationalError: One client could not.
    """
    arguments = [*_arguments(to, in_flight), "--cycles", str(cycles), "--levels", cycle.levels]
    arguments += [*_of_clients(keep=cycle.keep, names=names)]
    arguments += ["--subscribe", str(int(cycle.subscribe))]
    if login is not None:
        arguments += ["--users", str(login.users), "--password", login.password]
    arguments += ["--prefix", _new_prefix()]
    answer: dict[str, Any] = json.loads(_output([*command, *arguments]))
    return Cycles(**(answer | {"connack_ms": Latency(**answer["connack_ms"])}))


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CYCLES_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise OperationalError(f"the connector did not end within {CYCLES_SECONDS:.0f} s") from exc
    if done.returncode != 0:
        raise _gave_up(done.stderr, done.returncode)
    return done.stdout


@contextmanager
def hold_connections(
    command: Sequence[str],
    to: Sequence[str],
    count: int,
    *,
    in_flight: int = 50,
    keep: bool = False,
    names: Names | None = None,
) -> Iterator[HeldConnections]:
    """Hold connections for the length of a `with` block.

    Raises:
        OperationalError: Not all were accepted.
    """
    arguments = _arguments(to, in_flight)
    arguments += [*_of_clients(keep=keep, names=names), "--hold", str(count)]
    arguments += ["--prefix", _new_prefix()]
    with subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            held = HeldConnections(process)
            held.expect("held")
            yield held
            process.communicate(timeout=END_SECONDS)
        finally:
            process.kill()


def _arguments(to: Sequence[str], in_flight: int) -> list[str]:
    return ["--to", ",".join(to), "--in-flight", str(in_flight)]


def _of_clients(*, keep: bool, names: Names | None) -> list[str]:
    arguments = ["--keep", str(int(keep))]
    if names is not None:
        arguments += ["--names", names.prefix, "--first", str(names.first)]
        arguments += ["--stride", str(names.stride)]
    return arguments


def _new_prefix() -> str:
    return f"bench/{uuid.uuid4().hex[:12]}"


def _gave_up(words: str, returncode: int) -> OperationalError:
    return OperationalError(f"the connector gave up: {words.strip() or returncode}")
