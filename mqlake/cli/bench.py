"""Measure speed, memory and idle load on this machine."""

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from mqlake.bench.loader import FALLBACK, build_loader
from mqlake.bench.measurements import MEASUREMENTS, Bench, Figures
from mqlake.bench.report import summarise, to_json, to_table
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
    type=click.Choice(tuple(MEASUREMENTS)),
    multiple=True,
    help="Only this measurement; may be given several times.  [default: all]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def command(
    data_dir: Path | None, gateways: int, runs: int, only: tuple[str, ...], as_json: bool
) -> None:
    """Measure speed, memory and idle load on this machine.

    Takes about four minutes a run. The load comes from the same machine and shares its cores.
    """
    # As an exception, so that a system of our own is stopped before we are.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    loader = build_loader(RUNTIME / "bench")
    language = "Python" if loader == FALLBACK else "C"
    console = Console(stderr=True)
    if loader == FALLBACK:
        console.print("no C compiler: the Python loader limits what is measured")
    names = [name for name in MEASUREMENTS if not only or name in only]
    results: list[Figures] = []
    for run in range(1, runs + 1):
        of_runs = f" (run {run} of {runs})" if runs > 1 else ""
        with _system(data_dir, gateways, loader, console) as bench:
            results.append(_measure(bench, names, console, of_runs))
    summaries = summarise(results)
    if as_json:
        click.echo(json.dumps(to_json(summaries, loader=language), indent=2))
    else:
        Console().print(to_table(summaries, loader=language))


def _measure(bench: Bench, names: Sequence[str], console: Console, of_runs: str) -> Figures:
    figures: Figures = {}
    begin = time.monotonic()
    for name in names:
        with console.status(f"measuring {name}{of_runs}"):
            figures |= MEASUREMENTS[name](bench)
        console.print(f"{time.monotonic() - begin:5.0f} s  measured {name}{of_runs}")
    return figures


@contextmanager
def _system(
    data_dir: Path | None, gateways: int, loader: tuple[str, ...], console: Console
) -> Iterator[Bench]:
    """Take the running system, or run one of our own for the length of the block."""
    if data_dir is not None:
        yield Bench(read_state(data_dir), loader, ready_seconds=None)
        return
    with tempfile.TemporaryDirectory(prefix="mqlake-bench-") as folder:
        system = LocalSystem.in_folder(Path(folder) / "data", gateways)
        begin = time.monotonic()
        try:
            with console.status("starting a system"):
                system.up()
            ready_seconds = time.monotonic() - begin
            yield Bench(system.state(), loader, ready_seconds)
        finally:
            with console.status("stopping the system"):
                system.down()
