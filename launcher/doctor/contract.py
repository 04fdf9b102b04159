"""Input and findings of a check."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from launcher.paths import DataDirectory
from mqlake.processes.status import ProcessReport, SystemState


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, but not for long or not as well as it could."""
    ERROR = "error"
    """Something does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    detail: str
    """The finding in words."""
    advice: str = ""
    """Steps to take; empty when there are none."""


@dataclass(frozen=True, slots=True)
class Patient:
    """The system that is looked at.

    Attributes:
        data: Its folder.
        state: Last state from its supervisor; None when it does not run.
        username: With which to connect to the gateways; None for none.
        password: For the same user.
    """

    data: DataDirectory
    state: SystemState | None
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def running(self) -> SystemState:
        """The state of a system that runs; checks that need one are not asked without."""
        assert self.state is not None
        return self.state

    def process(self, name: str) -> ProcessReport | None:
        processes = () if self.state is None else self.state.processes
        return next((one for one in processes if one.name == name), None)

    def figures(self, name: str) -> dict[str, Any]:
        """Return the figures in a process's heartbeat."""
        process = self.process(name)
        return {} if process is None else process.figures

    @property
    def option(self) -> str:
        """The option of commands that names this system."""
        return f"--data-dir {self.data.root}"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    look: Callable[[Patient], Iterator[Finding]]
    needs_running: bool = True


def ok(check: str, detail: str) -> Finding:
    return Finding(check, Level.OK, detail)


def warning(check: str, detail: str, advice: str) -> Finding:
    return Finding(check, Level.WARNING, detail, advice)


def error(check: str, detail: str, advice: str) -> Finding:
    return Finding(check, Level.ERROR, detail, advice)
