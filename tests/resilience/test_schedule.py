"""Schedules are repeatable, and shrink to what matters."""

import asyncio
import random

from resilience.double.proof import judge
from resilience.faults import FAULTS
from resilience.plan import RandomFaults, Strike
from resilience.schedule import draw, shrink

NAMES = ("kill", "pause", "reset", "half-open")


def test_a_seed_draws_one_schedule() -> None:
    wanted = RandomFaults(NAMES, 6, 10.0)
    first, again, other = (
        draw(wanted, ("a", "b"), ("a",), random.Random(seed)) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other
    assert len(first) == 6
    assert [strike.at for strike in first] == sorted(strike.at for strike in first)


def test_processes_are_those_of_all_parts_and_connections_those_of_nodes() -> None:
    strikes = draw(RandomFaults(NAMES, 40, 10.0), ("node", "log"), ("node",), random.Random(1))
    parts = {name: {each.part for each in strikes if each.fault == name} for name in NAMES}
    assert parts["kill"] == parts["pause"] == {"node", "log"}
    assert parts["reset"] == parts["half-open"] == {"node"}


def test_arguments_that_are_drawn_are_those_of_the_fault() -> None:
    for name, fault in FAULTS.items():
        code = fault.strike.__code__
        known = code.co_varnames[2 : 2 + code.co_kwonlyargcount]
        assert set(fault.draw(random.Random(1))) <= set(known), name
        assert fault.text


def test_a_schedule_shrinks_to_the_faults_that_are_needed() -> None:
    strikes = tuple(Strike("pause", "a", at=float(at), args={"seconds": 8.0}) for at in range(12))
    tried = []

    async def fails(left: tuple[Strike, ...]) -> bool:
        tried.append(left)
        moments = {strike.at: strike.args["seconds"] for strike in left}
        return moments.get(3.0, 0) >= 2 and 10.0 in moments

    left = asyncio.run(shrink(strikes, fails))
    assert [(strike.at, strike.args["seconds"]) for strike in left] == [(3.0, 2.0), (10.0, 0.05)]
    assert len(tried) < 60


def test_what_fails_without_a_fault_shrinks_to_nothing() -> None:
    async def fails(left: tuple[Strike, ...]) -> bool:
        return True

    assert asyncio.run(shrink((Strike("kill", "a"), Strike("kill", "b")), fails)) == ()


def test_the_crash_that_loses_is_all_that_is_left() -> None:
    """Against the double, whose defect needs a crash and not the pauses around it."""

    def is_lost(strikes: tuple[Strike, ...], seed: int) -> bool:
        found = judge(
            seed, ["forget-on-crash"], groups=("flow", "resends"), share=1.0, strikes=strikes
        )
        return bool(found["lost"].violations)

    def schedule(seed: int) -> tuple[Strike, ...]:
        rng = random.Random(seed)
        crashes = [Strike("kill", "node-1", at=at) for at in (0.7, 1.5)]
        pauses = [Strike("pause", "node-1", at=rng.uniform(0, 4), args={"seconds": 0.3})] * 3
        return (*crashes, *pauses)

    seed = next(seed for seed in range(60) if is_lost(schedule(seed), seed))

    async def fails(strikes: tuple[Strike, ...]) -> bool:
        # The double has a loop of its own.
        return await asyncio.to_thread(is_lost, strikes, seed)

    left = asyncio.run(shrink(schedule(seed), fails))
    assert is_lost(left, seed)
    assert {strike.fault for strike in left} == {"kill"}
    assert len(left) == 1
