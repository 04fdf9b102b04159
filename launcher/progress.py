"""Progress of a start: as a live table on a terminal, else as plain lines.

All of it goes to standard error; standard output gets the one line that says the system is ready.
"""

import json
import sys
import time
from collections.abc import Iterable
from typing import IO, Any, Protocol

from mqlake.errors import OperationalError


class StartProgress(Protocol):
    """Gets reports from the one thread of the supervisor."""

    def part(self, name: str, state: str, *, done: bool = False) -> None:
        """Show the state of a part of the system while it starts."""
        ...

    def note(self, line: str) -> None:
        """Say something worth knowing once."""
        ...

    def tick(self) -> None:
        """Let time be seen to pass."""
        ...

    def ready(self, text: str) -> None:
        """Say that everything is up, by the first line, and next steps, by further ones."""
        ...

    def close(self) -> None:
        """Give back all that it holds; calling it again does nothing."""
        ...


class PlainProgress:
    """A line for each change."""

    def __init__(self, errors: IO[str] | None = None, output: IO[str] | None = None) -> None:
        self._errors = sys.stderr if errors is None else errors
        self._output = sys.stdout if output is None else output
        self._started_at = time.monotonic()
        self._states: dict[str, str] = {}

    def part(self, name: str, state: str, *, done: bool = False) -> None:
        if self._states.get(name) != state:
            self._states[name] = state
            elapsed = time.monotonic() - self._started_at
            _write(self._errors, f"{elapsed:5.1f} s  {name}: {state}")

    def note(self, line: str) -> None:
        _write(self._errors, f"mqlake: {line}")

    def tick(self) -> None:
        """Nothing: plain lines do not move."""

    def ready(self, text: str) -> None:
        _write_ready(text, self._errors, self._output)

    def close(self) -> None:
        """Nothing is held."""


class TerminalProgress:
    """A table, redrawn by `tick`: a thread of its own would make the supervisor's forks unsafe."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = Live(console=self._console, auto_refresh=False)
        self._live.start()
        self._started_at = time.monotonic()
        self._rows: dict[str, tuple[str, str]] = {}

    def part(self, name: str, state: str, *, done: bool = False) -> None:
        mark = f"[green]✓[/] {time.monotonic() - self._started_at:5.1f} s" if done else ""
        if self._live is not None and not (done and self._rows.get(name, ("", ""))[1]):
            self._rows[name] = (state, mark)

    def note(self, line: str) -> None:
        self._console.print(f"[yellow]mqlake:[/] {line}", markup=True)

    def tick(self) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)

    def ready(self, text: str) -> None:
        self.close()
        _write_ready(text, sys.stderr, sys.stdout)

    def close(self) -> None:
        """Leave the table as it stands."""
        if self._live is not None:
            self.tick()
            self._live.stop()
            self._live = None

    def _table(self) -> Any:
        from rich.markup import escape
        from rich.spinner import Spinner
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, (state, mark) in self._rows.items():
            shown = mark or Spinner("dots", style="cyan")
            table.add_row(shown, f"[bold]{name}[/]", f"[dim]{escape(state)}[/]")
        return table


class PipeProgress:
    """Hands everything to the process that waits for a detached system; see `replay`."""

    def __init__(self, pipe: IO[str]) -> None:
        self._pipe: IO[str] | None = pipe

    def part(self, name: str, state: str, *, done: bool = False) -> None:
        self._send("part", name, state, done)

    def note(self, line: str) -> None:
        self._send("note", line)

    def tick(self) -> None:
        """Nothing: the waiting process has a clock of its own."""

    def ready(self, text: str) -> None:
        self._send("ready", text)
        self.close()

    def failed(self, sentence: str) -> None:
        """Say why the system did not start."""
        self._send("failed", sentence)
        self.close()

    def close(self) -> None:
        """Let the waiting process go."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _send(self, kind: str, *values: object) -> None:
        if self._pipe is not None:
            try:
                self._pipe.write(json.dumps([kind, *values]) + "\n")
                self._pipe.flush()
            except OSError:  # the waiting process has gone; the system goes on
                self._pipe = None


def replay(lines: Iterable[str], progress: StartProgress) -> None:
    """Show the lines of a `PipeProgress`, until the system is ready.

    Raises:
        OperationalError: It did not start.
    """
    for line in lines:
        kind, *values = json.loads(line)
        if kind == "part":
            name, state, done = values
            progress.part(name, state, done=done)
        elif kind == "note":
            progress.note(values[0])
        elif kind == "ready":
            progress.ready(values[0])
            return
        else:
            raise OperationalError(values[0])
        progress.tick()
    raise OperationalError("the system ended while it started: see logs/supervisor.log")


def choose_progress() -> StartProgress:
    """Return the table for a terminal, else lines."""
    return TerminalProgress() if sys.stderr.isatty() else PlainProgress()


def _write_ready(text: str, errors: IO[str], output: IO[str]) -> None:
    """Write the line that programs read to the output, and the rest for people."""
    line, _, further = text.partition("\n")
    _write(output, line)
    if further:
        _write(errors, further)


def _write(file: IO[str], line: str) -> None:
    try:
        file.write(line + "\n")
        file.flush()
    except (OSError, ValueError):  # its reader has gone; the system goes on
        pass
