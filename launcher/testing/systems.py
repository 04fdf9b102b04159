"""Run a whole system through `bin/mqlake`, in a folder of its own on free ports, as tests do."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from launcher.paths import CHECKOUT
from launcher.planning.parts import SYSTEM_STOP_TIMEOUT_SECONDS
from launcher.ports import consecutive_free_ports, free_ports
from mqlake.errors import OperationalError
from mqlake.processes.status import SystemState, read_state, report, start_ticks

PROGRAM: Final = CHECKOUT / "bin" / "mqlake"
READY_TIMEOUT_SECONDS: Final = 360.0
_LOOK_SECONDS: Final = 0.05
_MOST_REST_SECONDS: Final = 4.0
_HEALTHY_TIMEOUT_SECONDS: Final = 480.0
"""Less than a test may take, so the error says which part is not healthy, and why."""


@dataclass(slots=True)
class LocalSystem:
    """One system: how to start it, ask it, stop it and look for its remains."""

    data_dir: Path
    mqtt_port: int
    api_port: int
    websocket_port: int = 0
    gateways: int = 1
    options: tuple[str, ...] = ()
    balanced: bool = False
    federation: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def in_folder(cls, data_dir: Path, gateways: int = 1, **more: Any) -> "LocalSystem":
        """Return one that does not run yet, with free ports."""
        mqtt_port = consecutive_free_ports(gateways + 1)
        api_port, websocket_port = free_ports(2)
        return cls(data_dir, mqtt_port, api_port, websocket_port, gateways, **more)

    def run(self, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run another command of `bin/mqlake` on this system's data directory."""
        return subprocess.run(
            [str(PROGRAM), command, "--data-dir", str(self.data_dir), *arguments],
            capture_output=True,
            text=True,
            env=self._environment(),
            timeout=READY_TIMEOUT_SECONDS + SYSTEM_STOP_TIMEOUT_SECONDS,
            check=False,
        )

    def up_arguments(self) -> list[str]:
        """Return the options of `up`, beside the data directory."""
        return [
            "--gateways",
            str(self.gateways),
            "--mqtt-port",
            str(self.mqtt_port),
            "--websocket-port",
            str(self.websocket_port),
            "--api-port",
            str(self.api_port),
            *(("--balanced",) if self.balanced else ()),
            *(("--federation", str(self.federation)) if self.federation is not None else ()),
            *self.options,
        ]

    def up(self) -> str:
        """Start it, detached; return the line that says it is ready.

        Raises:
            OperationalError: It did not start; with its output.
        """
        result = self.run("up", *self.up_arguments(), "--detach")
        if result.returncode != 0:
            raise OperationalError(f"exit code {result.returncode}: {result.stderr[-3000:]}")
        return result.stdout.strip()

    def up_in_foreground(self) -> "subprocess.Popen[str]":
        """Start it as a child of this process; its first line of output says it is ready."""
        return subprocess.Popen(
            [str(PROGRAM), "up", "--data-dir", str(self.data_dir), *self.up_arguments()],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment(),
        )

    def down(self) -> None:
        """Stop it.

        Raises:
            OperationalError: It did not stop.
        """
        result = self.run("down")
        if result.returncode != 0:
            raise OperationalError(result.stderr)

    def state(self) -> SystemState:
        return read_state(self.data_dir)

    def status(self) -> dict[str, Any]:
        """Return the output of `status --json`."""
        return report(self.state())

    def process(self, name: str) -> dict[str, Any]:
        """Return the entry of one process in `status`."""
        found: dict[str, Any] = next(
            process for process in self.status()["processes"] if process["name"] == name
        )
        return found

    def await_healthy(self, timeout_seconds: float = _HEALTHY_TIMEOUT_SECONDS) -> None:
        """Wait until every part is healthy.

        Raises:
            OperationalError: Not within the time.
        """
        deadline = time.monotonic() + timeout_seconds
        while not (status := self.status())["healthy"]:
            if time.monotonic() > deadline:
                raise OperationalError(f"not healthy: {json.dumps(status, indent=2)}")
            time.sleep(_LOOK_SECONDS)

    def kill(self, name: str) -> int:
        """Kill one process the hard way and wait for its end; return the pid it had."""
        pid: int = self.process(name)["pid"]
        os.kill(pid, signal.SIGKILL)
        await_condition(lambda: start_ticks(pid) is None, f"{name} is gone")
        return pid

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.api_port}"

    @property
    def api_token(self) -> str:
        return (self.data_dir / "api-token").read_text(encoding="ascii").strip()

    def left_processes(self) -> list[str]:
        """Return the command lines of all processes that have to do with this data directory."""
        needle = os.fsencode(self.data_dir)
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                if needle in command or needle in (entry / "environ").read_bytes():
                    found.append(command.replace(b"\0", b" ").decode("utf-8", "replace"))
            except OSError:
                continue
        return [command for command in found if command]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}


@contextmanager
def running_system(data_dir: Path, gateways: int = 1, **more: Any) -> Iterator[LocalSystem]:
    """Run a system for the length of a `with` block; `more` as in `LocalSystem`."""
    system = LocalSystem.in_folder(data_dir, gateways, **more)
    system.up()
    try:
        yield system
    finally:
        system.down()


def await_condition(
    condition: Callable[[], bool], what: str, *, timeout_seconds: float = 400.0
) -> None:
    """Poll until something holds of another process.

    A look is followed by a rest of three times its time: the other process needs the processors.

    Raises:
        OperationalError: It does not within the time.
    """
    begin = time.monotonic()
    deadline = begin + timeout_seconds
    while not condition():
        now = time.monotonic()
        if now > deadline:
            raise OperationalError(f"not within {timeout_seconds:g} s: {what}")
        time.sleep(min(max(_LOOK_SECONDS, 3 * (now - begin)), _MOST_REST_SECONDS))
        begin = time.monotonic()
