"""A hundred restarts of gateways leave nothing behind in those that run."""

from __future__ import annotations

import sys
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

from mqlake.records.sessions import NEVER_EXPIRES
from tests.ingest.session.simulation.schedule import Fault, Schedule, Step
from tests.ingest.session.simulation.world import World

if TYPE_CHECKING:
    from types import FrameType

    from tests.ingest.session.simulation.gateway import Process

GATEWAYS: Final = 4
_CONTAINERS: Final = (dict, list, set, frozenset, tuple, deque, Counter)


def entries(root: object) -> Counter[str]:
    """Count what product objects that are reachable from one keep, by class and attribute."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        name, one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, _CONTAINERS):
            found[name] += len(one)
            held = [*one.keys(), *one.values()] if isinstance(one, dict) else list(one)
            waiting += [(name, inner) for inner in held]
        elif type(one).__module__.startswith(("ingest.", "mqlake.")):
            slots = [slot for kind in type(one).__mro__ for slot in getattr(kind, "__slots__", ())]
            for attribute in {*getattr(one, "__dict__", {}), *slots}:
                if hasattr(one, attribute):
                    waiting.append((f"{type(one).__name__}.{attribute}", getattr(one, attribute)))
    return found


def calls_of_a_tick(process: Process) -> Counter[str]:
    """Count the calls of product functions that a tick of a gateway consists of."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_globals["__name__"].startswith(("ingest.", "mqlake.")):
            found[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        for shard in process.shards:
            now_ms = process.log_clock.now_ms()
            shard.tick(now_ms, process.is_dead, process.is_silent, process.is_spent)
        process.tick_sessions()
    finally:
        sys.setprofile(None)
    return found


def kept_after(restarts: int) -> list[tuple[Counter[str], Counter[str]]]:
    """Return what four gateways keep and do in a tick after restarts of all but the first.

    They are restarted in turns. Before each restart the gateway is cut off for longer than its
    lease, with two clients connected.
    """
    world = World(Schedule(1, GATEWAYS, 2, (), ()))
    for slot in range(GATEWAYS):
        world.start_process(slot, f"g{slot}", slot)
    for number in range(restarts):
        slot = 1 + number % (GATEWAYS - 1)
        for client in world.clients:
            step = Step(0, "connect", client.number, slot, will_delay=0, expiry=NEVER_EXPIRES)
            client.connect(step)
        pass_time(world, 2_000)
        world.strike(Fault(0, "cut_off", slot, 15_000), running(world, slot))
        pass_time(world, 30_000)
        world.crash(running(world, slot))
        world.start_process(slot, f"g{slot}", slot)
        pass_time(world, 20_000)
    for client in world.clients:
        client.hang_up(is_asked=True)
    pass_time(world, 40_000)
    kept = []
    for slot in range(GATEWAYS):
        process = running(world, slot)
        kept.append(
            (
                entries([process.shards, process.holder, process.saver]),
                calls_of_a_tick(process),
            )
        )
    world.end()
    return kept


def running(world: World, slot: int) -> Process:
    return next(one for one in world.processes if one.is_alive and one.slot == slot)


def pass_time(world: World, ms: int) -> None:
    world.run_until(world.now + ms)


def test_what_a_gateway_keeps_and_does_does_not_grow_with_restarts_of_others() -> None:
    few, many = kept_after(6), kept_after(99)
    assert sum(few[0][0].values()) > 0
    assert sum(few[0][1].values()) > 0
    for before, after in zip(few, many, strict=True):
        for one, later in zip(before, after, strict=True):
            assert {
                name: later[name] - one[name] for name in later if later[name] > one[name]
            } == {}
