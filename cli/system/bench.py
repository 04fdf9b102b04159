"""Measure speed, memory and idle load on this machine."""

import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import Progress, TaskID

from bench.gateways.authentication import measure_authentication
from bench.gateways.durability import measure_durability
from bench.gateways.fleet import measure_fleet
from bench.gateways.flood import measure_flood
from bench.gateways.overload import measure_overload
from bench.gateways.sessions import measure_connect_rates, measure_restarts, measure_sessions
from bench.load.programs import LoadPrograms, build_programs
from bench.measurements import (
    COLD,
    FIRST_HOUR,
    MEASUREMENTS,
    WITHOUT_SYSTEM,
    Measurement,
    warm_up,
)
from bench.results.report import summarise, to_json, to_table
from bench.systems.system import Bench
from cli.shared.progress import progress_bar
from launcher.paths import RUNTIME
from launcher.testing.systems import LocalSystem
from mqlake.processes.status import read_state

if TYPE_CHECKING:
    from bench.results.figures import Figures


SESSIONS = "sessions"
DURABILITY = "durability"
OVERLOAD = "overload"
AUTHENTICATION = "authentication"
FLOOD = "flood"
FLEET = "fleet"
FILE_COLUMNS = 160
"""Width of the table where there is no terminal: names of figures stay on one line."""


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Measure the running system of this directory.  [default: start and stop a separate one]",
)
@click.option(
    "--gateways",
    type=click.IntRange(1, 8),
    default=2,
    help="Number of gateways of the separate system.",
)
@click.option(
    "--runs", type=click.IntRange(1, 20), default=1, help="Number of runs; medians are shown."
)
@click.option(
    "--only",
    type=click.Choice(
        (
            *WITHOUT_SYSTEM,
            *MEASUREMENTS,
            AUTHENTICATION,
            DURABILITY,
            FLEET,
            FLOOD,
            OVERLOAD,
            SESSIONS,
        )
    ),
    multiple=True,
    help="Run only this measurement; repeatable.  [default: all but authentication, durability, "
    "first-hour, fleet, flood, overload and sessions]",
)
@click.option(
    "--stored-sessions",
    type=click.IntRange(2_500, 2_000_000),
    multiple=True,
    default=(10_000,),
    show_default=True,
    help="Number of sessions for the measurements fleet and sessions; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    data_dir: Path | None,
    gateways: int,
    runs: int,
    only: tuple[str, ...],
    stored_sessions: tuple[int, ...],
    as_json: bool,
) -> None:
    """Measure speed, memory and idle load on this machine.

    Takes about half an hour per run; figures under load are measured after a minute of messages.
    The load generator runs on the same machine and shares its cores; it needs a C compiler. The
    measurements authentication, durability, fleet, flood, overload and sessions start their own
    logs and gateways and run only on request; so does first-hour, which takes a quarter of an hour
    and measures what a new user gets, with nothing warmed up.
    """
    # As an exception, so that a system of our own is stopped before we are.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    programs = build_programs(RUNTIME / "bench")
    console = Console(stderr=True)

    def note(words: str) -> None:
        console.print(f"        {words}", highlight=False)

    alone = _alone(only, stored_sessions, programs, note)
    within = {
        name: what
        for name, what in MEASUREMENTS.items()
        if name in only or (not only and name != FIRST_HOUR)
    }
    results: list[Figures] = []
    try:
        with progress_bar(console) as bar:
            step = bar.add_task("", total=runs * (len(alone) + len(within)))
            for run in range(1, runs + 1):
                of_runs = f" (run {run} of {runs})" if runs > 1 else ""
                show = partial(_show, bar, step, of_runs)
                for name, take in alone.items():
                    show(f"measuring {name}")
                    results += take()
                    bar.advance(step)
                if within:
                    show("starting a system")
                    with _system(data_dir, gateways, programs, note) as bench:
                        begin = time.monotonic()
                        for name, figures in _measured(bench, within, show):
                            results += figures
                            bar.advance(step)
                            seconds = time.monotonic() - begin
                            console.print(f"{seconds:5.0f} s  measured {name}{of_runs}")
                        show("stopping the system")
    finally:  # figures from before a measurement failed, or was interrupted
        if results or as_json:
            _print(results, as_json=as_json)


def _show(bar: Progress, step: TaskID, of_runs: str, words: str) -> None:
    bar.update(step, description=words + of_runs)


def _alone(
    only: Collection[str],
    stored_sessions: Sequence[int],
    programs: LoadPrograms,
    note: Callable[[str], None],
) -> dict[str, Callable[[], Sequence["Figures"]]]:
    """Return what is measured without a system, or with one of its own."""
    alone = {name: take for name, take in WITHOUT_SYSTEM.items() if not only or name in only}
    if DURABILITY in only:
        alone[DURABILITY] = partial(measure_durability, programs, note)
    if AUTHENTICATION in only:
        alone[AUTHENTICATION] = partial(measure_authentication, programs, note)
    if FLEET in only:
        for size in stored_sessions:
            alone[f"a fleet of {size:,}"] = partial(measure_fleet, size, note)
    if FLOOD in only:
        alone[FLOOD] = partial(measure_flood, note)
    if OVERLOAD in only:
        alone[OVERLOAD] = partial(measure_overload, programs, note)
    if SESSIONS in only:
        alone["connects"] = partial(measure_connect_rates, programs)
        alone["restarts"] = measure_restarts
        for size in stored_sessions:
            alone[f"{size:,} sessions"] = partial(measure_sessions, programs, size, note)
    return alone


def _measured(
    bench: Bench, within: Mapping[str, Measurement], show: Callable[[str], None]
) -> Iterator[tuple[str, Sequence["Figures"]]]:
    """Measure in a system that is warmed up after what is measured cold."""
    is_cold = bench.own is not None
    for name, measurement in within.items():
        if is_cold and name not in COLD:
            show("warming up")
            warm_up(bench)
            is_cold = False
        show(f"measuring {name}")
        yield name, measurement(bench)


def _print(results: list["Figures"], *, as_json: bool) -> None:
    summaries = summarise(results)
    if as_json:
        click.echo(json.dumps(to_json(summaries), indent=2))
    else:
        width = None if sys.stdout.isatty() else FILE_COLUMNS
        Console(width=width).print(to_table(summaries))


@contextmanager
def _system(
    data_dir: Path | None, gateways: int, programs: LoadPrograms, note: Callable[[str], None]
) -> Iterator[Bench]:
    """Take the running system, or run one of our own for the length of the block."""
    if data_dir is not None:
        read_state(data_dir)
        yield Bench(data_dir, programs, note=note)
        return
    with tempfile.TemporaryDirectory(prefix="mqlake-bench-") as folder:
        system = LocalSystem.in_folder(Path(folder) / "data", gateways)
        begin = time.monotonic()
        try:
            system.up()
            ready_seconds = time.monotonic() - begin
            yield Bench(system.data_dir, programs, ready_seconds, system, note)
        finally:
            system.down()
