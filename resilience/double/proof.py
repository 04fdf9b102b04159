"""The tool proves itself: each planted defect is found, and a correct broker is not blamed."""

import asyncio
import random
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, Final

from resilience.checkers import Judgement, check
from resilience.double.defects import DEFECTS
from resilience.double.loop import run
from resilience.double.target import DoubleTarget
from resilience.history import Recorder
from resilience.plan import RandomFaults, RunPlan, Strike, fit, load
from resilience.runner import PlanRunner, execute
from resilience.schedule import draw
from resilience.workload import GROUPS, features

FAULTS: Final = ("kill", "term", "restart", "pause", "reset", "half-open")

FEEDS: Final[dict[str, str]] = {
    "retained": "retained",
    "will": "wills",
    "expired": "expiry",
    "share-group": "shares",
    "two-holders": "takeover",
    "after-unsuback": "unsubscribing",
    "suback-not-routed": "routes",
    "session-present": "sessions",
}
"""The group of clients that gives a checker its cases, where `flow` does not."""


COMBINATIONS: Final = (
    ("drop", "swap"),
    ("no-dup", "retained-old", "will-doubled"),
    ("early-suback", "ignored-unsubscribe", "expired"),
    ("session-lie", "over-window", "same-packet-id"),
    ("share-two", "tenant", "no-takeover"),
    ("mute-publish", "invent", "double-qos2", "retained-lost"),
)
"""Defects at once: one may hide another."""


def history(
    seed: int,
    defects: Collection[str] = (),
    *,
    groups: Collection[str] = tuple(GROUPS),
    share: float = 0.45,
    strikes: tuple[Strike, ...] | None = None,
    plan: RunPlan | None = None,
) -> Recorder:
    """Run the random workload of a seed against the double, in virtual time.

    `strikes` stand instead of the faults that the seed draws, `plan` instead of its workload.
    """
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    target = DoubleTarget(rng, nodes=rng.randint(1, 3), defects=defects)
    plan = plan or features(rng, target.nodes, groups, share)
    if strikes is None:
        wanted = RandomFaults(FAULTS, rng.choice((0, 0, 1, 2, 4)), 8.0)
        if rng.random() < 0.2:
            wanted = RandomFaults(("reset",), 10, 3.0)
        strikes = draw(wanted, target.parts, target.nodes, rng)
    plan = fit(replace(plan, strikes=strikes, quiet_seconds=4.0), target.nodes)
    return run(_record(plan, target, rng, seed))


async def _record(plan: RunPlan, target: DoubleTarget, rng: random.Random, seed: int) -> Recorder:
    recorder = Recorder(
        {"target": target.name, "seed": seed, "promises": dict(target.promises)},
        asyncio.get_running_loop().time,
    )
    problems = await execute(PlanRunner(plan, target, recorder, rng))
    recorder.header["problems"] = problems
    return recorder


def judge(seed: int, defects: Collection[str] = (), **how: object) -> Judgement:
    """Run and check; see `history`."""
    recorder = history(seed, defects, **how)  # type: ignore[arg-type]
    return check(recorder.header, recorder.operations)


def groups_for(defect: str) -> tuple[str, ...]:
    """Return the groups of clients among which a defect can show itself."""
    checker, kind = DEFECTS[defect].found_by
    if checker == "crossing":
        return ("tenants",) if kind.startswith("tenant") else ("rights",)
    if kind == "unsubscribe":
        return ("unsubscribing",)
    if kind == "not subscribed":
        return ("flow", "sessions")
    if defect in ("forget-pubrec", "resume-backwards", "forget-on-crash", "no-dup"):
        return ("flow", "resends")
    return (FEEDS.get(checker, "flow"),)


def in_scenario(name: str) -> dict[str, Any]:
    """Return the arguments of `history` for a scenario of the tool, whose faults hit a node."""
    plan = load(name).plan
    strikes = tuple(
        strike if strike.part.startswith("@") else replace(strike, part="@1")
        for strike in plan.strikes
    )
    return {"plan": replace(plan, strikes=()), "strikes": strikes}


def seeds_until_found(defects: Iterable[str], seeds: Iterable[int]) -> tuple[int | None, list[str]]:
    """Run seeds until the checkers of all these defects have found them.

    Returns:
        How many runs it took, None if they were not all found; and the missing ones.
    """
    defects = tuple(defects)
    groups = {group for defect in defects for group in groups_for(defect)}
    missing = {defect: DEFECTS[defect].found_by for defect in defects}
    scenarios = sorted({DEFECTS[defect].scenario for defect in defects})
    for count, seed in enumerate(seeds, start=1):
        # One scenario after the other, if there are several.
        scenario = scenarios[seed % len(scenarios)]
        how = in_scenario(scenario) if scenario else {"groups": groups, "share": 1.0}
        judgement = judge(seed, defects, **how)
        for defect, (checker, kind) in list(missing.items()):
            if judgement[checker].kinds.get(kind):
                del missing[defect]
        if not missing:
            return count, []
    return None, sorted(missing)


def false_alarms(seeds: Iterable[int]) -> dict[int, list[str]]:
    """Run the double without a defect; return the seeds whose checkers blame it."""
    found = {}
    for seed in seeds:
        judgement = judge(seed)
        if judgement.violated:
            found[seed] = judgement.violated
    return found
