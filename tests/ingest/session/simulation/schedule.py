"""What happens in a simulated world, made from a seed: what clients do, and which faults strike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from mqlake.records.sessions import NEVER_EXPIRES

LATE_MS: Final = 900
"""How long after it was sent a request lands at the latest."""

CLIENTS: Final = 2
_GAPS_MS: Final = (0, 1, 2, 3, 5, 8, 15, 40, 300, 2_000, 4_000, 13_000)
_FAULTS: Final = (
    *("crash", "crash", "crash", "pause", "pause", "pause"),
    *("cut_off", "unheard", "mute", "slow", "late", "unsure", "unsure", "step"),
)
_PAUSES_MS: Final = (100, 1_500, 2_900, 3_500, 5_000, 9_500, 10_500, 11_500, 13_000, 30_000)
_FREEZES_MS: Final = (3_500, 13_000, 13_000, 30_000)
_EXPIRIES: Final = (NEVER_EXPIRES, NEVER_EXPIRES, NEVER_EXPIRES, 0, 0, 8)
_WILLS: Final = (None, None, 0, 0, 3)
_AHEAD_MS: Final = (0, 0, 0, 3_601_237, -3_599_411, 7_013, -2_503)
_RATES: Final = (1.0, 1.0, 0.995, 1.005)


@dataclass(frozen=True, slots=True)
class Step:
    """What a client, an operator or the log does."""

    at_ms: int
    what: str
    """connect, disconnect, drop, publish, message, restart, wait (for nothing) or compact."""
    who: int = 0
    """Client, or slot of a gateway; from CLIENTS on another user with a client's identifier."""
    gateway: int = 0
    clean: bool = False
    will_delay: int | None = None
    expiry: int = 0
    qos: int = 2
    is_half_open: bool = False
    """The client's connection before it stays open at the server: nothing has told it."""
    subscribes: bool = True

    def __str__(self) -> str:
        told = {
            "connect": f"client {self.who} connects to g{self.gateway}"
            f" clean={self.clean} will={self.will_delay} expiry={self.expiry}"
            f" half-open={self.is_half_open} subscribes={self.subscribes}",
            "message": f"a message of QoS {self.qos} is published",
            "restart": f"slot {self.who} is started again",
            "compact": "the log is compacted",
        }
        return told.get(self.what, f"client {self.who}: {self.what}")


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong before an event, counted over all gateways."""

    event: int
    what: str
    """crash, pause, or for a time: cut off from the log, unheard (reads no heartbeats and control
    records), mute (no heartbeats), slow (reads no shards), late (appends take longer), unsure (the
    log does not answer for what clients publish), stopped (its ticks are lost, nothing else),
    time_out (appends time out, whether the log has them or not),
    freeze (a pause in which no clock of its machine goes on), or step: the calendar is set by so
    much."""
    gateway: int | None
    """Slot; None: the gateway whose event it is."""
    ms: int = 0

    def __str__(self) -> str:
        return f"{self.what} {self.gateway} {self.ms} ms before event {self.event}"


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    gateways: int
    shards: int
    steps: tuple[Step, ...]
    faults: tuple[Fault, ...]
    clocks: tuple[tuple[int, float], ...] = ((0, 1.0),) * 4
    """By slot: how far the calendar of its machine is ahead, in ms, and how fast its clocks are."""
    is_one_machine: bool = False
    """Whether gateways see that the process of another one has ended."""
    max_queued: int = 10_000
    """Messages that may wait for a connected client."""
    answer_ms: int = 0
    """How long a client takes over each message, at most."""


def on_one_machine(seed: int) -> Schedule:
    """Return the schedule of a seed on one machine, where one more gateway ends."""
    schedule, random = make_schedule(seed), Random(f"machine {seed}")
    event = random.randint(5, 40 + 18 * len(schedule.steps))
    faults = (*schedule.faults, Fault(event, "crash", None))
    faults = tuple(sorted(faults, key=lambda fault: fault.event))
    return replace(schedule, faults=faults, is_one_machine=True)


def with_freeze(schedule: Schedule, events_of_step: int = 18) -> Schedule:
    """Return a schedule in which one more thing goes wrong: a machine is frozen."""
    random = Random(f"freeze {schedule.seed}")
    gateway = None if random.random() < 0.7 else random.randrange(schedule.gateways)
    event = random.randint(5, 40 + events_of_step * len(schedule.steps))
    freeze = Fault(event, "freeze", gateway, random.choice(_FREEZES_MS))
    kept = schedule.faults if random.random() < 0.5 else ()
    faults = tuple(sorted((*kept, freeze), key=lambda fault: fault.event))
    return replace(schedule, faults=faults)


def frozen(seed: int) -> Schedule:
    """Return the schedule of a seed in which a machine is frozen."""
    return with_freeze(make_schedule(seed))


def with_strangers(seed: int) -> Schedule:
    """Return the schedule of a seed in which other users come with the clients' identifiers."""
    schedule, random = make_schedule(seed), Random(f"strangers {seed}")
    steps = []
    for step in schedule.steps:
        if random.random() < 0.5:
            at_ms, who = step.at_ms, CLIENTS + random.randrange(CLIENTS)
            if step.what == "connect" and random.random() < 0.7:
                who = CLIENTS + step.who
            what = random.choices(("connect", "drop", "disconnect", "publish"), (6, 2, 1, 1))[0]
            clean, will, expiry = (
                random.random() < 0.4,
                random.choice(_WILLS),
                random.choice(_EXPIRIES),
            )
            gateway = random.randrange(schedule.gateways)
            at_ms += random.choice((-3, -1, 0, 0, 1, 2, 5, 40, 300))
            stranger = Step(at_ms, what, who, gateway, clean, will, expiry)
            steps.append(replace(stranger, is_half_open=random.random() < 0.3))
        steps.append(step)
    return replace(schedule, steps=tuple(sorted(steps, key=lambda step: step.at_ms)))


def with_slow_clients(seed: int) -> Schedule:
    """Return the schedule of a seed in which more comes than the clients take."""
    schedule, random = make_schedule(seed), Random(f"slow {seed}")
    steps = list(schedule.steps)
    for step in schedule.steps:
        if step.what == "connect" and random.random() < 0.8:
            at_ms = step.at_ms + random.choice((0, 20, 60, 300))
            for _ in range(random.randint(4, 25)):
                at_ms += random.choice((0, 0, 1, 2, 9, 40))
                steps.append(Step(at_ms, "message", qos=random.choice((1, 2, 2))))
    return replace(
        schedule,
        steps=tuple(sorted(steps, key=lambda step: step.at_ms)),
        max_queued=random.choice((0, 1, 1, 2, 4)),
        answer_ms=random.choice((1, 5, 30, 200)),
    )


def make_schedule(seed: int) -> Schedule:
    """Return the schedule of a seed: few gateways and clients, much at the same moment."""
    random = Random(seed)
    gateways = random.choice((2, 2, 2, 3, 3, 4))
    at_ms, steps = 2_500, []
    who = 0
    for _ in range(random.randint(4, 14)):
        at_ms += random.choice(_GAPS_MS)
        if random.random() < 0.4:
            who = random.randrange(CLIENTS)
        what = random.choices(
            ("connect", "disconnect", "drop", "publish", "message", "restart", "wait", "compact"),
            (8, 2, 3, 5, 6, 2, 1, 1),
        )[0]
        if what == "connect":
            options = (random.random() < 0.25, random.choice(_WILLS), random.choice(_EXPIRIES))
            if random.random() < 0.2:
                options = (True, None, 0)  # what an owner may begin at once
            step = Step(at_ms, what, who, random.randrange(gateways), *options)
            half_open, subscribes = random.random() < 0.4, random.random() < 0.8
            step = replace(step, is_half_open=half_open, subscribes=subscribes)
        elif what in {"restart", "wait"}:
            step = Step(at_ms, what, random.randrange(gateways))
        elif what == "message":
            step = Step(at_ms, what, qos=random.choice((1, 2, 2)))
        else:
            step = Step(at_ms, what, who)
        steps.append(step)
    faults = []
    for _ in range(random.choice((0, 1, 1, 2, 2, 3))):
        what = random.choice(_FAULTS)
        ms = LATE_MS if what == "late" else random.choice(_PAUSES_MS)
        gateway = None if random.random() < 0.7 else random.randrange(gateways)
        if what == "step":
            ms = random.choice(_AHEAD_MS)
        faults.append(Fault(random.randint(5, 40 + 18 * len(steps)), what, gateway, ms))
    faults += lost_ticks(seed, gateways, 40 + 18 * len(steps))
    faults.sort(key=lambda fault: fault.event)
    shards = 2 if random.random() < 0.2 else 1
    clocks = tuple((random.choice(_AHEAD_MS), random.choice(_RATES)) for _ in range(gateways))
    return Schedule(seed, gateways, shards, tuple(steps), tuple(faults), clocks)


def lost_ticks(seed: int, gateways: int, events: int) -> list[Fault]:
    """Return a fault for every fourth schedule: one gateway's clock ticks are lost, one or many."""
    random = Random(f"ticks {seed}")
    if random.random() >= 0.25:
        return []
    ms = random.choice((1_000, 1_000, 1_000, *_PAUSES_MS))
    gateway = None if random.random() < 0.7 else random.randrange(gateways)
    return [Fault(random.randint(5, events), "stopped", gateway, ms)]
