"""Families of schedules that go for one thing: a fault at each event of the same few steps."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from mqlake.records.sessions import NEVER_EXPIRES
from tests.ingest.session.simulation.on_disk import WorldOnDisk
from tests.ingest.session.simulation.opening import OLD_RELEASE
from tests.ingest.session.simulation.schedule import (
    CLIENTS,
    LATE_MS,
    Fault,
    Schedule,
    Step,
    with_strangers,
)
from tests.ingest.session.simulation.search import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ingest.session.simulation.invariants import Violation

STRANGERS: Final = 700
"""Schedules in which other users come with the identifiers of clients."""

KEPT: Final = 100
"""Of these schedules, how many with shards on disk."""

FREE: Final = 300
"""Schedules in which sessions that no record tells of change their gateway."""


def strangers_come() -> Iterator[Violation | None]:
    """Have other users come with the identifiers of clients."""
    for seed in range(STRANGERS):
        yield run(with_strangers(seed))


def keep_on_disk() -> Iterator[Violation | None]:
    """Have other users come while gateways write and read back what they know."""
    for seed in range(KEPT):
        yield run(with_strangers(seed), WorldOnDisk)


def outlast_a_stranger() -> Iterator[Violation | None]:
    """Have a stranger come twice while a client is connected, its owner read anew in between."""
    steps = (
        Step(2_500, "connect", 0, 1, clean=True),
        Step(3_000, "connect", CLIENTS, 0),
        Step(30_000, "compact"),
        *(Step(30_010 + number, "message", qos=1) for number in range(10)),
        Step(36_000, "restart", 0),
        Step(45_000, "connect", CLIENTS, 0),
    )
    for event in range(20, 60, 4):
        yield run(Schedule(event, 2, 1, steps, (Fault(event, "crash", 0),)))


def stand_still_while_publishing() -> Iterator[Violation | None]:
    """Have a gateway stand still at each event while a client publishes, who then moves on."""
    steps = (
        Step(2_500, "connect", 0, 0, expiry=NEVER_EXPIRES),
        Step(4_000, "publish"),
        Step(4_300, "connect", 0, 1, expiry=NEVER_EXPIRES, is_half_open=True),
        Step(22_000, "wait"),
    )
    for event in range(20, 45):
        for seed in range(4):
            pause = Fault(event, "pause", 0, 13_000)
            yield run(Schedule(seed, 2, 1, steps, (pause,)))


def crash_at_each_event() -> Iterator[Violation | None]:
    """Have a gateway die at each event while a client sends and is sent QoS 2, and moves on."""
    steps = (
        Step(2_500, "connect", 0, 0, expiry=NEVER_EXPIRES),
        Step(3_000, "message", qos=2),
        Step(3_000, "publish", 0),
        Step(3_001, "message", qos=1),
        Step(3_002, "message", qos=2),
        Step(3_003, "message", qos=2),
        Step(3_004, "publish", 0),
        Step(3_012, "publish", 0),
        Step(3_400, "publish", 0),
        Step(3_600, "connect", 0, 1, expiry=NEVER_EXPIRES),
        Step(15_000, "message", qos=2),
        Step(16_000, "publish", 0),
    )
    for event in range(12, 92):
        for seed in range(3):
            yield run(Schedule(seed, 2, 1, steps, (Fault(event, "crash", 0),)))


def take_over_twice() -> Iterator[Violation | None]:
    """Have a gateway die while it sends QoS 1, and the client leave the next one before its end."""
    coming = [Step(3_000 + number, "message", qos=1) for number in range(8)]
    for event in range(26, 54, 2):
        for stay in range(12, 32, 3):
            steps = (
                Step(2_500, "connect", 0, 0, expiry=NEVER_EXPIRES),
                *coming,
                Step(20_000, "connect", 0, 1, expiry=NEVER_EXPIRES),
                Step(20_000 + stay, "drop", 0),
                Step(22_000, "connect", 0, 1, expiry=NEVER_EXPIRES),
            )
            yield run(Schedule(event, 2, 1, steps, (Fault(event, "crash", 0),)))


def move_while_messages_come() -> Iterator[Violation | None]:
    """Have a client change its gateway between messages of which the first one dies, or not."""
    coming = [Step(3_000 + 9 * number, "message", qos=2) for number in range(120)]
    steps = (
        Step(2_500, "connect", 0, 0, expiry=NEVER_EXPIRES),
        *coming,
        Step(4_080, "connect", 0, 1, expiry=NEVER_EXPIRES),
        *(Step(4_080 + number, "message", qos=2) for number in range(60)),
    )
    for number in range(60):
        faults = (Fault(400 + 12 * number, "crash", 0),) if number % 2 else ()
        yield run(Schedule(number, 2, 1, steps, faults))


def fall_behind_and_crash() -> Iterator[Violation | None]:
    """Have a gateway die at each event while a client takes less than what comes, and moves on."""
    coming = [
        Step(3_000 + 2 * number, "message", qos=1 if number % 3 == 0 else 2) for number in range(14)
    ]
    steps = (
        Step(2_500, "connect", 0, 0, expiry=NEVER_EXPIRES),
        *coming,
        Step(3_300, "connect", 0, 1, expiry=NEVER_EXPIRES),
        *(Step(15_000 + number, "message", qos=2) for number in range(9)),
    )
    for event in range(24, 120, 4):
        for seed in range(3):
            fault = Fault(event, "crash", 0 if seed else None)
            yield run(Schedule(seed, 2, 1, steps, (fault,), max_queued=seed, answer_ms=12))


def lose_the_answer() -> Iterator[Violation | None]:
    """Have the log not answer for a message, and its gateway die while it is looked for."""
    steps = (
        Step(2_500, "connect", 0, 0, expiry=NEVER_EXPIRES),
        Step(4_000, "publish", 0),
        Step(4_300, "publish", 0),
        Step(4_600, "connect", 0, 1, expiry=NEVER_EXPIRES),
    )
    for event in range(22, 40):
        for seed in range(4):
            faults = (Fault(event, "unsure", 0, 150), Fault(event + 20, "crash", 0))
            yield run(Schedule(seed, 2, 1, steps, faults))


def change_owners() -> Iterator[Violation | None]:
    """Have a clean session's client move while the shard of its session changes its owner."""

    def connect(at_ms: int, gateway: int, *, again: bool = False) -> Step:
        return Step(at_ms, "connect", 0, gateway, clean=True, is_half_open=again)

    for number in range(FREE):
        random = Random(number)
        at, gateway = 6_000, random.randrange(2)
        moved_at = at + 300 + random.choice((3_000, 3_300, 3_800, 4_500, 6_000))
        ms = moved_at - at + random.choice((-300, 0, 100, 300, 600, 1_000, 2_000))
        event = random.randint(8, 12)  # just after it has subscribed, or a little later
        faults: tuple[Fault, ...] = (
            Fault(event, random.choice(("pause", "mute")), gateway, ms),
            # Then it reads deliveries for a while before it reads shards.
            Fault(event, "slow", gateway, ms + random.choice((-2_000, 200, 700, 1_500))),
        )
        steps = [connect(at, gateway), connect(moved_at, 1 - gateway, again=True)]
        if random.random() < 0.3:  # the other one comes back, and owns the shard without a silence
            faults = (Fault(5, "crash", 1 - gateway),)
            moved_at = at + random.randrange(600)
            steps[1] = connect(moved_at, 1 - gateway, again=True)
            steps.append(Step(at - LATE_MS - random.randrange(600), "restart", 1 - gateway))
        steps += [
            Step(moved_at + random.choice((2, 10, 50, 90, 130)) * part, "message", qos=1)
            for part in range(1, 30)
        ]
        ordered = tuple(sorted(steps, key=lambda step: step.at_ms))
        yield run(Schedule(number, 2, 1, ordered, faults))


def wait_while_cut_off() -> Iterator[Violation | None]:
    """Have a gateway hear of nothing while a client waits there for its session, and moves on."""
    for number in range(240):
        random = Random(number)
        fault = random.choice(("pause", "cut_off", "unheard"))
        ms = random.choice((12_500, 14_000, 16_000, 20_000))
        moved_at = 2_500 + random.choice((5_000, 12_000, 14_000, 17_000, 30_000))
        gateway = random.randrange(2)
        steps = (
            Step(2_500, "connect", 0, gateway, will_delay=0, expiry=NEVER_EXPIRES),
            Step(moved_at, "connect", 0, random.randrange(2), will_delay=0, is_half_open=True),
            Step(moved_at + 18_000, "drop", 0),
        )
        event = random.randrange(8, 20)
        yield run(
            Schedule(number * OLD_RELEASE + 1, 2, 1, steps, (Fault(event, fault, gateway, ms),))
        )
