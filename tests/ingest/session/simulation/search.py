"""Finding a schedule that breaks a promise, and telling how: shrunk, as a transcript."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.ingest.session.simulation.invariants import Violation
from tests.ingest.session.simulation.schedule import Schedule, make_schedule
from tests.ingest.session.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def run(schedule: Schedule, world: type[World] = World) -> Violation | None:
    """Run a schedule; return what it breaks."""
    try:
        world(schedule).run()
    except Violation as exc:
        return exc
    except Exception as exc:  # noqa: BLE001 - a fault of the code under test, as any other
        return Violation("no errors", repr(exc))
    return None


def shrink(schedule: Schedule, name: str, world: type[World] = World) -> Schedule:
    """Leave out faults and steps while the same promise is broken."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for part in ("faults", "steps"):
            at = 0
            while at < len(getattr(schedule, part)):
                parts = getattr(schedule, part)
                fewer: Schedule = replace(schedule, **{part: parts[:at] + parts[at + 1 :]})
                found = run(fewer, world)
                if found is not None and found.name == name:
                    schedule, is_smaller = fewer, True
                else:
                    at += 1
    return schedule


def explain(schedule: Schedule, world: type[World] = World) -> str:
    """Return what a schedule breaks and how: the seed, the shrunk schedule, and each event."""
    found = run(schedule, world)
    if found is None:
        return f"seed {schedule.seed} breaks nothing"
    small = shrink(schedule, found.name, world)
    transcript: list[str] = []
    error = ""
    try:
        world(small, transcript).run()
    except Exception as exc:  # noqa: BLE001
        error = f"{type(exc).__name__} {exc}"
    parts = [f"seed {schedule.seed}: {error}", f"{small.gateways} gateways, {small.shards} shards"]
    parts += [str(fault) for fault in small.faults]
    return "\n".join([*parts, *transcript, error])


def around(seed: int, distance: int) -> list[int]:
    """Return the seeds around one, the nearest first."""
    near = range(max(0, seed - distance), seed + distance)
    return sorted(near, key=lambda other: abs(other - seed))


def search(
    seeds: Iterable[int],
    make: Callable[[int], Schedule] = make_schedule,
    world: type[World] = World,
) -> tuple[int, Violation] | None:
    """Return the first seed whose schedule breaks a promise, and which."""
    for seed in seeds:
        found = run(make(seed), world)
        if found is not None:
            return seed, found
    return None
