"""Runs of one scenario against one target: histories, verdicts, shrunk schedules of failures."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from resilience import definition as definitions
from resilience import local
from resilience.checkers import check_file, is_owing
from resilience.errors import ResilienceError, TargetError
from resilience.faults import FAULTS
from resilience.history import Writer
from resilience.machines.machine import DISK, PACKETS, PROXY, missing
from resilience.mixed import mixed
from resilience.plan import STORE, RunPlan, Scenario, Strike, apart, fit
from resilience.runner import PlanRunner, execute
from resilience.schedule import draw, shrink
from resilience.workload import some_features

RESULT: Final = "result.json"
TAKEN_BY_POWER_LOSS: Final = (
    "no_loss",
    "exactly_once",
    "dup_flag",
    "order",
    "sessions_kept",
    "retained",
    "wills",
)
TAKEN_BY_DAMAGE: Final = ("no_phantoms", *TAKEN_BY_POWER_LOSS)
UNSURVIVED: Final = {
    "power-loss": ("survives_power_loss", TAKEN_BY_POWER_LOSS),
    "bit-flip": ("survives_damage", TAKEN_BY_DAMAGE),
    "truncate": ("survives_damage", TAKEN_BY_DAMAGE),
}
"""By fault: a promise, and those that a target which denies it does not make in such a run."""
WORKLOADS: Final = {"features": some_features, "mixed": mixed}
"""Workloads by the name in `generate` of a scenario."""

TRIES: Final = 3
"""Runs without a failure after which a schedule counts as one that does not fail."""


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    """How a scenario is run.

    Attributes:
        runs: How many, or if there are minutes at least as many.
        minutes: So long runs begin.
        is_quick: Fewer messages, shorter faults: `RunPlan.hurried`.
        shrinks: Whether a failing schedule of random faults is made smaller, by further runs.
    """

    folder: Path
    runs: int
    seed: int
    minutes: float = 0.0
    driver: str = "raw"
    is_quick: bool = False
    shrinks: bool = False


class Stage:
    """Place of the runs of one target.

    A target that starts as a whole takes a while to start: one serves all runs that follow each
    other, as long as its machines meet their needs. After a run with which something was wrong,
    and after one that spoils it, it is started again; so it is after one with a disk that fails,
    unless such a disk is among those needs that it has for all.

    Args:
        needs: Those of `machines.machine.NEEDS` that its machines have for all runs; other runs get
            their own.
    """

    def __init__(
        self, definition: definitions.Definition, needs: Iterable[str] = frozenset()
    ) -> None:
        self._definition = definition
        self._always = frozenset(needs)
        self._runner: asyncio.Runner | None = None
        self.target: local.LocalTarget | None = None
        """Target of the next run, if its machines meet the needs of that run; None when stopped."""
        self._needs: set[str] = set()
        self._count = 0
        self.usage: dict[str, int] = {}
        """Usage of the target at the end of the last run."""

    def run(
        self, plan: RunPlan, header: dict[str, Any], path: Path, seed: int, driver: str
    ) -> list[str]:
        """Run a plan, and write its history; return deviations from the plan."""
        faults = [strike.fault for strike in plan.strikes]
        needs = needed(faults)
        is_whole = bool(self._definition.system.start)
        is_kept = is_whole and (DISK not in needs or DISK in self._always)
        # Whether clients come through a proxy is decided for each run.
        wanted = needs | self._always | {PROXY} if is_kept else needs
        # A clock of its own costs all processes; a network of packets only passes them on.
        if not is_kept or not wanted <= self._needs <= wanted | {PACKETS}:
            self.close()
        if self._runner is None or self.target is None:
            self._needs = wanted
            self._runner = asyncio.Runner()
            rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
            self.target = local.LocalTarget(self._definition, needs=wanted, rng=rng)
            try:
                self._runner.run(self.target.start())
            except TargetError as exc:
                self.close()
                with path.open("w", encoding="utf-8") as stream:
                    Writer(stream, header, time.monotonic)
                return [f"not started: {exc}"]
        self.target.connect(through_proxy=PROXY in needs)
        if is_kept:
            self._count += 1
            plan = apart(plan, f"run-{self._count}")
        problems = self._runner.run(_execute(plan, self.target, header, path, seed, driver))
        try:
            self.usage = self._runner.run(self.target.usage())
        except TargetError as exc:
            self.usage = {}
            problems.append(str(exc))
        if problems or not is_kept or spoils(faults):
            self.close()
        return problems

    def audit(self) -> dict[str, Any] | None:
        """Let the target be audited; None if it has no audit of its own, or runs no more."""
        if self._runner is None or self.target is None or not self._definition.system.audit:
            return None
        holds, text = self._runner.run(self.target.audit())
        return {"holds": holds, "text": text}

    def close(self) -> None:
        """Stop the target."""
        runner, target = self._runner, self.target
        self._runner = self.target = None
        if runner is not None:
            with runner:
                if target is not None:
                    runner.run(target.stop())


def is_promised(promises: Any, promise: str) -> bool:
    """Tell whether a target makes the promise that a checker tests; MQTT itself makes the rest."""
    return promises.get(promise, True) is not False


def promises_in(promises: Mapping[str, Any], faults: Iterable[str]) -> dict[str, Any]:
    """Return the promises of a target in a run with these faults."""
    left = dict(promises)
    for fault in faults:
        promise, taken = UNSURVIVED.get(fault, ("", ()))
        if promises.get(promise, True) is False:
            left.update(dict.fromkeys(taken, False))
    return left


def obstacle(scenario: Scenario, definition: definitions.Definition) -> str:
    """Return why a scenario cannot be run against a target here; empty if it can."""
    unpromised = [need for need in scenario.needs if not definition.promises.get(need)]
    if unpromised:
        return f"needs {', '.join(unpromised)}, not promised"
    struck = {strike.part for strike in scenario.plan.strikes if not strike.part.startswith("@")}
    if not definition.store and any(each.part == STORE for each in scenario.plan.strikes):
        return f"strikes files, and {definition.name} does not say where they are"
    if strange := sorted(struck - set(definition.parts)):
        return f"strikes {', '.join(strange)}, which {definition.name} does not have"
    return missing(needs_of(scenario))


def needs_of(scenario: Scenario) -> set[str]:
    """Return the needs of a scenario's faults, of `machines.machine.NEEDS`."""
    return needed(_faults_of(scenario))


def spoils_what_it_runs_on(scenario: Scenario) -> bool:
    """Tell whether no other run can follow on the same system."""
    return spoils(_faults_of(scenario))


def _faults_of(scenario: Scenario) -> list[str]:
    drawn = () if scenario.random_faults is None else scenario.random_faults.names
    return [*(strike.fault for strike in scenario.plan.strikes), *drawn]


def order_of(scenario: Scenario) -> list[str]:
    """Return the key that sorts scenarios, so that those that can share a system are together."""
    return sorted(needs_of(scenario) - {PROXY})


def fault_count(scenario: Scenario) -> int:
    """Return how many faults strike in a run."""
    drawn = 0 if scenario.random_faults is None else scenario.random_faults.count
    return len(scenario.plan.strikes) + drawn


def spoils(faults: Iterable[str]) -> bool:
    """Tell whether one of these faults leaves a system that no other run can use."""
    return any(FAULTS[name].spoils for name in faults if name in FAULTS)


def needed(faults: Iterable[str]) -> set[str]:
    """Return the needs of faults of these names, of `machines.machine.NEEDS`."""
    return {FAULTS[name].needs for name in faults if name in FAULTS} - {""}


def run(
    scenario: Scenario,
    definition: definitions.Definition,
    settings: CampaignSettings,
    tell: Callable[[str], None],
    stage: Stage,
) -> dict[str, Any]:
    """Run a scenario, and keep histories and `result.json` in the folder."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    begin = time.monotonic()
    end = begin + 60 * settings.minutes
    while len(rows) < settings.runs or time.monotonic() < end:
        number = len(rows) + 1
        seed = settings.seed + number - 1
        row = _run_once(scenario, definition, settings, seed, f"run-{number:03d}", stage)
        row["usage"] = stage.usage and {"at": time.monotonic() - begin, **stage.usage}
        rows.append(row)
        tell(f"{definition.name} {scenario.name} run {number}: {_short(row)}")
        if row["broken"] and row["faults"] and settings.shrinks and scenario.random_faults:
            row["shrunk"] = _shrink(scenario, definition, settings, row, tell, stage)
    audit = stage.audit() if settings.minutes else None
    if audit is not None:
        tell(f"{definition.name} {scenario.name}: its own audit\n{audit['text']}")
    result = {
        "result": 1,
        "scenario": scenario.name,
        "title": scenario.title,
        "source": scenario.source,
        "published": [dict(row) for row in scenario.published],
        "target": definition.name,
        "target_title": definition.title,
        "version": definitions.version_of(definition),
        "promises": promises_in(definition.promises, _faults_of(scenario)),
        "settings": dict(definition.settings),
        "driver": settings.driver,
        "scale": scale_of(scenario, settings),
        "runs": rows,
        "audit": audit,
    }
    (settings.folder / RESULT).write_text(json.dumps(result, indent=1), encoding="utf-8")
    return result


def _short(row: dict[str, Any]) -> str:
    measures = row["measures"]
    found = [
        f"{verdict['name']} {verdict['violations']} of {verdict['checked']}"
        for verdict in row["verdicts"]
        if verdict["violations"]
    ]
    problems = [f"problem: {problem}" for problem in row["problems"]]
    said = "; ".join((*found, *problems)) or "nothing found"
    return f"{row['seconds']:.0f} s, {measures['rate_per_second']:g} acknowledged/s, {said}"


def scale_of(scenario: Scenario, settings: CampaignSettings) -> float:
    """Return the factor of counts of messages."""
    return scenario.quick if settings.is_quick else 1.0


def make_plan(
    scenario: Scenario,
    definition: definitions.Definition,
    nodes: tuple[str, ...],
    seed: int,
    *,
    is_quick: bool = False,
) -> RunPlan:
    """Return the plan of one run: the scenario's, or the workload that the seed draws."""
    plan = scenario.plan
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    if scenario.generate:
        workload_seed = seed if scenario.workload_seed is None else scenario.workload_seed
        kept = random.Random(workload_seed)  # noqa: S311 - the same
        generated = WORKLOADS[scenario.generate](kept, nodes, definition.promises)
        plan = replace(plan, clients=generated.clients)
    if is_quick:
        plan = plan.hurried(scenario.quick)
    if scenario.random_faults is not None:
        strikes = draw(scenario.random_faults, tuple(definition.parts), nodes, rng)
        plan = replace(plan, strikes=strikes)
    return fit(plan, nodes, definition.store)


def _run_once(
    scenario: Scenario,
    definition: definitions.Definition,
    settings: CampaignSettings,
    seed: int,
    name: str,
    stage: Stage,
    strikes: tuple[Strike, ...] | None = None,
) -> dict[str, Any]:
    nodes = tuple(name for name, part in definition.parts.items() if part.port)
    plan = make_plan(scenario, definition, nodes, seed, is_quick=settings.is_quick)
    if strikes is not None:
        plan = replace(plan, strikes=strikes)
    path = settings.folder / f"{name}.jsonl"
    promises = promises_in(definition.promises, [strike.fault for strike in plan.strikes])
    header = {
        "scenario": scenario.name,
        "target": definition.name,
        "driver": settings.driver,
        "seed": seed,
        "scale": scale_of(scenario, settings),
        "promises": promises,
        **scenario.header,
    }
    begin = time.monotonic()
    problems = stage.run(plan, header, path, seed, settings.driver)
    seconds = time.monotonic() - begin
    judgement = check_file(path)
    verdicts = [verdict.to_json() for verdict in judgement.verdicts]
    broken = [
        verdict["name"]
        for verdict in verdicts
        if verdict["violations"] and is_promised(promises, verdict["promise"])
    ]
    return {
        "seed": seed,
        "history": path.name,
        "seconds": round(seconds, 1),
        "faults": [str(strike) for strike in plan.strikes],
        "problems": problems,
        "broken": broken,
        "verdicts": verdicts,
        "measures": judgement.measures.to_json(),
    }


async def _execute(
    plan: RunPlan,
    target: local.LocalTarget,
    header: dict[str, Any],
    path: Path,
    seed: int,
    driver: str,
) -> list[str]:
    with path.open("w", encoding="utf-8") as stream:
        writer = Writer(stream, header, time.monotonic)
        rng = random.Random(seed)  # noqa: S311 - repeatable, not secret

        await target.open_tenants(sorted({client.tenant for client in plan.clients} - {""}))

        def owes() -> bool:
            stream.flush()
            return is_owing(path)

        return await execute(PlanRunner(plan, target, writer, rng, driver, owes))


def _shrink(
    scenario: Scenario,
    definition: definitions.Definition,
    settings: CampaignSettings,
    row: dict[str, Any],
    tell: Callable[[str], None],
    stage: Stage,
) -> list[str]:
    """Find the smallest schedule that breaks the same promise, and keep it as a scenario."""
    seed = row["seed"]
    nodes = tuple(name for name, part in definition.parts.items() if part.port)
    plan = make_plan(scenario, definition, nodes, seed, is_quick=settings.is_quick)
    start = plan.strikes

    async def fails(strikes: tuple[Strike, ...]) -> bool:
        for _ in range(TRIES):
            again = await asyncio.to_thread(
                _run_once, scenario, definition, settings, seed, "shrinking", stage, strikes
            )
            if set(again["broken"]) & set(row["broken"]):
                return True
        return False

    left = asyncio.run(shrink(start, fails))
    tell(f"smallest schedule that fails: {'; '.join(map(str, left)) or 'no fault at all'}")
    path = settings.folder / f"shrunk-{seed}.toml"
    path.write_text(to_toml(scenario, seed, left, row["broken"]), encoding="utf-8")
    return [str(strike) for strike in left]


def to_toml(scenario: Scenario, seed: int, strikes: tuple[Strike, ...], broken: list[str]) -> str:
    """Return a scenario of the random workload with a fixed schedule; JSON strings are TOML's."""
    if not scenario.generate:
        raise ResilienceError(f"{scenario.name} has clients of its own; only its faults shrink")
    title = f"{scenario.name}, seed {seed}: broke {', '.join(broken)}"
    lines = [
        "[scenario]",
        f"title = {json.dumps(title)}",
        f"generate = {json.dumps(scenario.generate)}",
        f"workload_seed = {seed if scenario.workload_seed is None else scenario.workload_seed}",
        "",
        "[plan]",
        f"quiet_seconds = {scenario.plan.quiet_seconds}",
        f"drain_seconds = {scenario.plan.drain_seconds}",
        f"limit_seconds = {scenario.plan.limit_seconds}",
    ]
    for strike in strikes:
        lines += ["", "[[fault]]", f"name = {json.dumps(strike.fault)}"]
        lines += [f"part = {json.dumps(strike.part)}", f"at = {strike.at}"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in strike.args.items()]
    return "\n".join(lines) + "\n"
