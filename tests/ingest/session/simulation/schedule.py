"""What happens in a simulated world, made from a seed: what clients do, and which faults strike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from mqlake.session_records import NEVER_EXPIRES

LATE_MS: Final = 900
"""How long after it was sent a request lands at the latest."""

CLIENTS: Final = 2
_GAPS_MS: Final = (0, 1, 2, 3, 5, 8, 15, 40, 300, 2_000, 4_000, 13_000)
_FAULTS: Final = (
    *("crash", "crash", "crash", "pause", "pause", "pause"),
    *("deaf", "unheard", "mute", "slow", "late", "unsure", "unsure", "step"),
)
_PAUSES_MS: Final = (100, 1_500, 2_900, 3_500, 5_000, 9_500, 10_500, 11_500, 13_000, 30_000)
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
    """Client, or slot of a gateway."""
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
    """crash, pause, or for a time: deaf to all, unheard (deaf to beats and control records), mute
    (no beats), slow (deaf to shards), late (appends take longer), unsure (the log does not answer
    for what clients publish), or step: the calendar is set by so much."""
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
    faults.sort(key=lambda fault: fault.event)
    shards = 2 if random.random() < 0.2 else 1
    clocks = tuple((random.choice(_AHEAD_MS), random.choice(_RATES)) for _ in range(gateways))
    return Schedule(seed, gateways, shards, tuple(steps), tuple(faults), clocks)
