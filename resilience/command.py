"""`resilience run | load | check | report | list | prove`, with the standard library alone."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from resilience import campaign, plan
from resilience import definition as definitions
from resilience import load as load_experiment
from resilience.checkers import CHECKERS, check_file
from resilience.double.defects import DEFECTS
from resilience.double.proof import COMBINATIONS, false_alarms, seeds_until_found
from resilience.drivers import DRIVERS
from resilience.errors import ResilienceError
from resilience.faults import FAULTS
from resilience.jobs import run_all
from resilience.page import to_html
from resilience.report import load, percent, to_json, to_text

ALL = "all"
SIZES, REPETITIONS = (0, 100, 1000), 20
QUICK_SIZES, QUICK_REPETITIONS = (0, 20, 100), 2
LOAD_RESULT = "load.json"
QUICK_JOBS = 2
BATCH = 50
"""Runs of the double that a process does in one go."""

SEEDS_OF_A_DEFECT = 60
"""Seeds whose runs do not find a defect before it counts as not found."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0 only if nothing promised was broken."""
    signal.signal(signal.SIGTERM, _terminate)
    options = make_parser().parse_args(arguments)
    try:
        code: int = options.do(options)
    except (ResilienceError, OSError) as exc:
        sys.stderr.write(f"resilience: {exc}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _terminate(number: int, _frame: Any) -> NoReturn:
    # As an exception, so that the parts of a target are stopped before we are.
    raise SystemExit(128 + number)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands, with their options and help."""
    parser = argparse.ArgumentParser(prog="resilience", description="Fault tests for MQTT brokers.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run scenarios, or all, against targets")
    run.add_argument("scenario", nargs="+", help="names, TOML files or `all`")
    run.add_argument("--target", action="append", required=True, help="repeatable")
    run.add_argument("--runs", type=int, help="instead of the scenario's number")
    run.add_argument(
        "--minutes", type=float, default=0.0, help="repeat runs for this time: a soak test"
    )
    run.add_argument("--seed", type=int, default=1, help="of the first run; later runs count up")
    run.add_argument("--driver", choices=DRIVERS, default="raw")
    run.add_argument("--quick", action="store_true", help="one run, with fewer messages")
    run.add_argument("--jobs", type=int, help="scenarios in parallel: 2 with --quick, else 1")
    run.add_argument("--shrink", action="store_true", help="minimise a failing random schedule")
    run.add_argument("--out", type=Path, default=Path("resilience-results"))
    run.add_argument("--json", action="store_true")
    run.set_defaults(do=_run)
    loading = commands.add_parser("load", help="measure the cost of clients and messages")
    loading.add_argument("--target", required=True)
    loading.add_argument("--clients", type=_clients, action="append", help="0, 100, 1000")
    loading.add_argument("--repetitions", type=int, help="of each number of clients: 20")
    loading.add_argument("--quick", action="store_true", help="0, 20 and 100 clients, twice each")
    loading.add_argument("--qos", type=int, choices=(0, 1, 2), default=1)
    loading.add_argument("--out", type=Path, default=Path("resilience-results"))
    loading.add_argument("--json", action="store_true")
    loading.set_defaults(do=_load)
    check = commands.add_parser("check", help="judge a history")
    check.add_argument("history", type=Path)
    check.add_argument("--json", action="store_true")
    check.set_defaults(do=_check)
    report = commands.add_parser("report", help="report all results below a folder")
    report.add_argument("folder", type=Path)
    report.add_argument("--json", action="store_true")
    report.set_defaults(do=_report)
    listing = commands.add_parser("list", help="scenarios, targets, faults, checkers, defects")
    listing.set_defaults(do=_list)
    prove = commands.add_parser("prove", help="prove the checkers with the broker double")
    prove.add_argument("--clean-runs", type=int, default=10_000)
    prove.add_argument("--seed", type=int, default=0)
    prove.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    prove.set_defaults(do=_prove)
    return parser


def _run(options: argparse.Namespace) -> int:
    names = plan.names() if options.scenario == [ALL] else options.scenario
    # Those that need the same of the machine follow each other: they can share a system.
    scenarios = sorted(map(plan.load, names), key=campaign.order_of)
    jobs = options.jobs or (QUICK_JOBS if options.quick else 1)
    results, missing = [], False
    for name in options.target:
        definition = definitions.load(name)
        work = []
        for scenario in scenarios:
            if obstacle := campaign.obstacle(scenario, definition):
                _tell(f"{definition.name} {scenario.name}: not run: {obstacle}")
            else:
                work.append((scenario, _settings(options, scenario, definition)))
        found = run_all(definition, work, jobs, _tell)
        missing = missing or len(found) < len(work)
        results += found
    broken = missing or any(
        run["broken"] or run["problems"] for result in results for run in result["runs"]
    )
    audits = [result["audit"] for result in results if result["audit"]]
    broken = broken or not all(audit["holds"] for audit in audits)
    _print_report(results, options.out, as_json=options.json)
    return 1 if broken or not results else 0


def _settings(
    options: argparse.Namespace, scenario: plan.Scenario, definition: definitions.Definition
) -> campaign.CampaignSettings:
    return campaign.CampaignSettings(
        folder=options.out / definition.name / f"{scenario.name}-{options.driver}",
        runs=options.runs or (1 if options.quick or options.minutes else scenario.runs),
        seed=options.seed,
        minutes=options.minutes,
        driver=options.driver,
        is_quick=options.quick,
        shrinks=options.shrink,
    )


def _clients(text: str) -> int:
    number = int(text)
    if number < 0 or number % 4:
        raise argparse.ArgumentTypeError(f"expected a multiple of 4, got {text}")
    return number


def _load(options: argparse.Namespace) -> int:
    definition = definitions.load(options.target)
    folder = options.out / definition.name / "load"
    sizes = options.clients or (QUICK_SIZES if options.quick else SIZES)
    repetitions = options.repetitions or (QUICK_REPETITIONS if options.quick else REPETITIONS)
    result = load_experiment.run(definition, sizes, repetitions, options.qos, _tell)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    (folder / LOAD_RESULT).write_text(text, encoding="utf-8")
    sys.stdout.write((text if options.json else load_experiment.to_text(result)) + "\n")
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _print_report(results: list[dict[str, Any]], folder: Path, *, as_json: bool) -> None:
    if not results:
        return
    page = folder / "report.html"
    page.write_text(to_html(results), encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(to_json(results), indent=1), encoding="utf-8")
    text = json.dumps(to_json(results), indent=1) if as_json else to_text(results)
    sys.stdout.write(text + "\n")
    _tell(f"page: {page}")


def _check(options: argparse.Namespace) -> int:
    start = time.monotonic()
    judgement = check_file(options.history)
    seconds = time.monotonic() - start
    promises = judgement.header.get("promises", {})
    rows = [verdict.to_json() for verdict in judgement.verdicts]
    measures = judgement.measures.to_json()
    if options.json:
        sys.stdout.write(json.dumps({"verdicts": rows, "measures": measures}) + "\n")
    else:
        for row in rows:
            bound = "" if row["at_most"] is None else f", ≤ {percent(row['at_most'])} at 95 %"
            sys.stdout.write(
                f"{row['name']:22} {row['violations']} of {row['checked']}{bound},"
                f" {row['unknown']} unknown\n"
            )
            for operation in row["witness"]:
                sys.stdout.write(f"    {json.dumps(operation)}\n")
        sys.stdout.write(f"judged in {seconds:.1f} s\n")
    broken = [
        row for row in rows if row["violations"] and campaign.is_promised(promises, row["promise"])
    ]
    return 1 if broken else 0


def _report(options: argparse.Namespace) -> int:
    _print_report(load(options.folder), options.folder, as_json=options.json)
    return 0


def _list(_options: argparse.Namespace) -> int:
    lines = ["scenarios"]
    lines += [f"  {name:20} {plan.load(name).title}" for name in plan.names()]
    lines.append("targets")
    for name in definitions.names():
        definition = definitions.load(name)
        lines.append(f"  {name:20} {definition.title}; {definition.note}")
    lines.append("faults")
    lines += [f"  {name:20} {FAULTS[name].text}" for name in sorted(FAULTS)]
    lines.append("checkers (and the promise of a target that each is for)")
    lines += [f"  {each.name:20} {each.clause} ({each.promise})" for each in CHECKERS]
    lines.append("defects of the double")
    lines += [f"  {name:22} {defect.text}" for name, defect in DEFECTS.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _prove(options: argparse.Namespace) -> int:
    """Look for each defect, for several at once, then for false alarms."""
    failed = False
    seeds = range(options.seed, options.seed + SEEDS_OF_A_DEFECT)
    for defects in (*((name,) for name in DEFECTS), *COMBINATIONS):
        runs, missing = seeds_until_found(defects, seeds)
        failed = failed or bool(missing)
        told = f"found in run {runs}" if runs else f"NOT FOUND: {', '.join(missing)}"
        finders = ", ".join(": ".join(DEFECTS[name].found_by) for name in defects)
        sys.stdout.write(f"{' and '.join(defects):22} {told:16} {finders}\n")
    start = time.monotonic()
    first, last = options.seed, options.seed + options.clean_runs
    batches = [range(at, min(at + BATCH, last)) for at in range(first, last, BATCH)]
    with ProcessPoolExecutor(options.processes) as pool:
        for done, found in enumerate(pool.map(false_alarms, batches), start=1):
            if done % 20 == 0:
                _tell(f"{done * BATCH} clean runs so far")
            for seed, checkers in found.items():
                failed = True
                sys.stdout.write(f"false alarm: seed {seed}: {', '.join(checkers)}\n")
    seconds = time.monotonic() - start
    sys.stdout.write(f"{options.clean_runs} clean runs in {seconds:.0f} s\n")
    return 1 if failed else 0
