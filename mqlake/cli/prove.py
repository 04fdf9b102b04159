"""Kill and pause processes in the middle of traffic and look for every message."""

import json
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from mqlake.cli._progress import progress_bar
from mqlake.errors import OperationalError
from mqlake.local.testing import LocalSystem
from mqlake.survival.faults import FAULTS, USUAL
from mqlake.survival.ledger import RetainedVerdict, Verdict, WillVerdict
from mqlake.survival.trial import MESSAGES, Outcome, run_trial

MAX_SEED: Final = 999_999
MAX_REPEATED: Final = 3
"""Messages that a kill may repeat to each of the two subscribers. Of 10,000 deliveries 10 may come
twice, and publishers repeat some too."""

TABLE_WIDTH: Final = 120


def _fault_table() -> str:
    """Return what may happen to a system as lines of help."""
    width = max(map(len, FAULTS))
    return "\n".join(
        f"{name:{width}}  {'*' if fault.is_usual else ' '} {fault.what}"
        for name, fault in FAULTS.items()
    )


@click.command(
    epilog="\b\nFaults; those with * run when nobody chooses:\n" + _fault_table(),
)
@click.option("--times", type=click.IntRange(1, 1000), default=1, help="Repeat the whole set.")
@click.option(
    "--seed",
    type=click.IntRange(0, MAX_SEED),
    default=None,
    help="Decides who is where, when, and what is sent; further runs count up.  [default: any]",
)
@click.option(
    "--only",
    type=click.Choice(tuple(FAULTS)),
    metavar="FAULT",
    multiple=True,
    help="Only this fault; may be given several times.  [default: those with * below]",
)
@click.option("--all", "with_all", is_flag=True, help="Every fault, the long ones too.")
@click.option(
    "--qos",
    type=click.Choice(("1", "2")),
    multiple=True,
    help="Only messages of this QoS, beside the others.  [default: both at once]",
)
@click.option(
    "--gateways",
    type=click.IntRange(2, 8),
    default=2,
    show_default=True,
    help="How many there are.",
)
@click.option("--messages", type=click.IntRange(100), default=MESSAGES, help="Of each QoS.")
@click.option("--speed", type=click.FloatRange(1, 20_000), default=500.0, help="Of each, a second.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder for the system, must not exist.  [default: a temporary one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def command(
    times: int,
    seed: int | None,
    only: tuple[str, ...],
    with_all: bool,
    qos: tuple[str, ...],
    gateways: int,
    messages: int,
    speed: float,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Kill and pause processes in the middle of traffic and look for every message.

    Runs a system of its own. Publishers send to two subscribers, one of them away for a while, and
    to a share group, another one retains its messages; 20 clients with wills are connected; then a
    fault strikes. Every message acknowledged to its publisher must reach both subscribers, in
    order, and one member of the group; nobody who subscribes anew sees a retained message older
    than the one before; every connection that breaks gives its will once, no other does. Exit code
    1 when it is not so; the system's folder is kept then.
    """
    # As an exception, so that the system is stopped before we are.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if data_dir is not None and data_dir.exists():
        raise OperationalError(f"{data_dir} exists: choose another --data-dir")
    folder = data_dir or Path(tempfile.mkdtemp(prefix="mqlake-prove-")) / "data"
    first_seed = random.randint(0, MAX_SEED) if seed is None else seed  # noqa: S311 - any will do
    levels = [int(level) for level in qos] or [1, 2]
    console = Console(stderr=True)
    system = LocalSystem.in_folder(folder.absolute(), gateways, environment=environment(messages))
    outcomes: list[Outcome] = []
    try:
        with progress_bar(console) as bar:
            names = only or (tuple(FAULTS) if with_all else USUAL)
            step = bar.add_task("starting a system", total=times * len(names))
            system.up()
            for run_seed in range(first_seed, first_seed + times):
                for name in names:
                    what = f"{FAULTS[name].what} (seed {run_seed})"
                    bar.update(step, description=what)
                    found = run_trial(
                        system,
                        name,
                        FAULTS[name],
                        levels,
                        run_seed,
                        messages=messages,
                        per_second=speed,
                    )
                    outcomes += found
                    for outcome in found:
                        console.print(_line(outcome), highlight=False)
                    bar.advance(step)
    finally:
        if as_json:
            click.echo(json.dumps([outcome.to_json() for outcome in outcomes], indent=2))
        elif outcomes:
            wide = Console(width=max(TABLE_WIDTH, Console().width))
            for table in (_message_table, _retained_table, _will_table):
                wide.print(table(outcomes))
        with console.status("stopping the system"):
            system.down()
    bad = [outcome for outcome in outcomes if outcome.problems]
    if bad:
        seeds = ", ".join(sorted({f"{outcome.fault} {outcome.seed}" for outcome in bad}))
        raise OperationalError(f"promises broken ({seeds}); the system's folder is {folder}")
    if data_dir is None:
        shutil.rmtree(folder.parent)


def environment(messages: int) -> dict[str, str]:
    """Return settings under which all messages may wait for a client, and few come twice."""
    return {
        "MQLAKE_GATEWAY_MAX_OFFLINE_MESSAGES": str(2 * messages),
        "MQLAKE_GATEWAY_MAX_REPEATED_MESSAGES": str(MAX_REPEATED),
    }


def _line(outcome: Outcome) -> str:
    verdict = "ok" if not outcome.problems else "; ".join(outcome.problems)
    return f"{outcome.fault} {outcome.flow} seed {outcome.seed}: {verdict}"


def _message_table(outcomes: list[Outcome]) -> Table:
    columns = ("sent", "acked", "received", "lost", "twice", "no DUP", "disorder", "recovery")
    return _table(
        columns,
        [
            (
                outcome,
                (
                    verdict.sent,
                    verdict.acknowledged,
                    verdict.received,
                    verdict.lost,
                    verdict.duplicates,
                    verdict.without_dup,
                    verdict.out_of_order,
                    f"{outcome.recovery_seconds:.1f} s",
                ),
            )
            for outcome in outcomes
            if isinstance(verdict := outcome.verdict, Verdict)
        ],
    )


def _retained_table(outcomes: list[Outcome]) -> Table:
    columns = ("sent", "looks", "after the last", "missing", "back in time", "recovery")
    return _table(
        columns,
        [
            (
                outcome,
                (
                    verdict.sent,
                    verdict.looks,
                    verdict.last,
                    verdict.missing,
                    verdict.back_in_time,
                    f"{outcome.recovery_seconds:.1f} s",
                ),
            )
            for outcome in outcomes
            if isinstance(verdict := outcome.verdict, RetainedVerdict)
        ],
    )


def _will_table(outcomes: list[Outcome]) -> Table:
    columns = ("clients", "broken", "due", "wills", "missing", "twice", "of connected", "last")
    return _table(
        columns,
        [
            (
                outcome,
                (
                    verdict.clients,
                    verdict.broken,
                    verdict.due,
                    verdict.wills,
                    verdict.missing,
                    verdict.twice,
                    verdict.of_connected,
                    f"{outcome.recovery_seconds:.1f} s",
                ),
            )
            for outcome in outcomes
            if isinstance(verdict := outcome.verdict, WillVerdict)
        ],
    )


def _table(columns: Sequence[str], rows: Sequence[tuple[Outcome, Sequence[object]]]) -> Table:
    table = Table(box=None)
    for name in ("fault", "flow"):
        table.add_column(name)
    for name in ("seed", *columns):
        table.add_column(name, justify="right")
    table.add_column("")
    for outcome, figures in rows:
        table.add_row(
            outcome.fault,
            outcome.flow,
            str(outcome.seed),
            *map(str, figures),
            "BROKEN" if outcome.problems else "ok",
        )
    return table
