"""Measure speed, memory and idle load on this machine."""

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from mqlake.bench.figures import Figures
from mqlake.bench.measurements import (
    MEASUREMENTS,
    REPETITIONS_WITHOUT_SYSTEM,
    WITHOUT_SYSTEM,
    Measurement,
)
from mqlake.bench.programs import FALLBACK, Programs, build_programs
from mqlake.bench.report import summarise, to_json, to_table
from mqlake.bench.system import Bench
from mqlake.local.paths import RUNTIME
from mqlake.local.testing import LocalSystem
from mqlake.status import read_state


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Measure the system that runs there.  [default: start one of its own, and stop it]",
)
@click.option(
    "--gateways", type=click.IntRange(1, 8), default=2, help="Gateways of its own system."
)
@click.option("--runs", type=click.IntRange(1, 20), default=1, help="Medians of so many runs.")
@click.option(
    "--only",
    type=click.Choice((*WITHOUT_SYSTEM, *MEASUREMENTS)),
    multiple=True,
    help="Only this measurement; may be given several times.  [default: all]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def command(
    data_dir: Path | None, gateways: int, runs: int, only: tuple[str, ...], as_json: bool
) -> None:
    """Measure speed, memory and idle load on this machine.

    Takes about fifteen minutes a run. The load comes from the same machine and shares its cores.
    """
    # As an exception, so that a system of our own is stopped before we are.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    programs = build_programs(RUNTIME / "bench")
    console = Console(stderr=True)
    if programs == FALLBACK:
        console.print("no C compiler: the Python load programs limit what is measured")
    alone = {name: take for name, take in WITHOUT_SYSTEM.items() if not only or name in only}
    within = {name: what for name, what in MEASUREMENTS.items() if not only or name in only}
    results: list[Figures] = []
    for run in range(1, runs + 1):
        of_runs = f" (run {run} of {runs})" if runs > 1 else ""
        for name, take in alone.items():
            with console.status(f"measuring {name}{of_runs}"):
                results += [take() for _ in range(REPETITIONS_WITHOUT_SYSTEM)]
        if within:
            with _system(data_dir, gateways, programs, console) as bench:
                results += _measure(bench, within, console, of_runs)
    summaries = summarise(results)
    if as_json:
        click.echo(json.dumps(to_json(summaries, loader=programs.language), indent=2))
    else:
        Console().print(to_table(summaries, loader=programs.language))


def _measure(
    bench: Bench, measurements: Mapping[str, Measurement], console: Console, of_runs: str
) -> list[Figures]:
    results: list[Figures] = []
    begin = time.monotonic()
    for name, measurement in measurements.items():
        with console.status(f"measuring {name}{of_runs}"):
            results += measurement(bench)
        console.print(f"{time.monotonic() - begin:5.0f} s  measured {name}{of_runs}")
    return results


@contextmanager
def _system(
    data_dir: Path | None, gateways: int, programs: Programs, console: Console
) -> Iterator[Bench]:
    """Take the running system, or run one of our own for the length of the block."""

    def note(words: str) -> None:
        console.print(f"        {words}", highlight=False)

    if data_dir is not None:
        read_state(data_dir)
        yield Bench(data_dir, programs, note=note)
        return
    with tempfile.TemporaryDirectory(prefix="mqlake-bench-") as folder:
        system = LocalSystem.in_folder(Path(folder) / "data", gateways)
        begin = time.monotonic()
        try:
            with console.status("starting a system"):
                system.up()
            ready_seconds = time.monotonic() - begin
            yield Bench(system.data_dir, programs, ready_seconds, system, note)
        finally:
            with console.status("stopping the system"):
                system.down()
