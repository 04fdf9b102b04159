"""The numbers that a bench gives: their names, units and goals.

The goals are those of a machine with 2 cores that runs everything, the load side included.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.load.loader import Latency


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: its name and its goal."""

    name: str
    unit: str
    goal: float | None = None
    at_least: bool = False
    """The goal is a least value, not a most."""

    def is_met(self, value: float) -> bool | None:
        """Tell whether the value reaches the goal; None without a goal."""
        if self.goal is None:
            return None
        return value >= self.goal if self.at_least else value <= self.goal


Figures = dict[Figure, float]

_OF_STORED_SESSIONS: Final = {
    "start beside 3 gateways": 20.0,
    "CONNECT to CONNACK, p50": 8.0,
    "CONNECT to CONNACK, p99": 40.0,
    "idle beside 5,000 progress/s": 5.0,
    "owner killed, shards answer": 5.0,
    # The lease, by default 10 s, and 3 s.
    "holder killed, 2,000 clients back": 13.0,
    "holder and owner killed, 2,000 clients back": 13.0,
}
"""However many there are."""

_OF_ROUTES: Final = {
    "match of a topic seen before": 0.5,
    "match of a new topic": 1.5,
    "memory of a filter": 150,
}

_CONNECTS: Final = {
    "clean": 4_000,
    "clean, one subscription each": 1_500,
    "sessions that outlive it": 1_500,
    "sessions that outlive it, one subscription each": 1_500,
}
"""A second, in a system and without the rest of it."""

_OF_FLEETS: Final[Mapping[str, tuple[float, bool]]] = {
    ", made": (1_500, True),
    ", made, CONNECT to SUBACK, p99": (300, False),
    ", back after 100,000 messages": (2_000, True),
    ", back after 100,000 messages, CONNECT to message, p99": (500, False),
    ", wildcards, back after 100,000 messages": (500, True),
}
"""However many sessions they have."""

_OF_THE_FIRST_HOUR: Final = {
    "first SQL after the demo": (3.0, False),
    "SQL again": (1.5, False),
    "first dry run, of the demo": (3.0, False),
    "clean connects, 8 at a time": (2_500, True),
    "with a subscription each, 8 at a time": (1_500, True),
    "memory, the query's Spark included": (2670, False),
    "memory without the query's Spark": (2098, False),
    "ready again": (18, False),
    "down": (5, False),
    "down while parts start": (5, False),
    **{
        f"delivery at 1,000/s, five minutes, {part}": (most, False)
        for part, most in (("p50", 3), ("p99", 20), ("p99.9", 60), ("max", 150))
    },
}

GOALS: Final[Mapping[str, tuple[float, bool]]] = {
    "codec, decode PUBLISH 3.1.1, QoS 0": (400_000, True),
    "codec, decode PUBLISH 5.0, QoS 1": (400_000, True),
    "codec, encode PUBLISH 3.1.1, QoS 0": (400_000, True),
    "codec, encode PUBLISH 5.0, QoS 1": (400_000, True),
    "codec, decode and encode again PUBLISH 5.0, QoS 1": (400_000, True),
    **{
        f"route function, {filters:,} filters, {what}": (goal, False)
        for filters in (100_000, 1_000_000)
        for what, goal in _OF_ROUTES.items()
    },
    "gateway's tree, 10,000 subscriptions, match of a topic seen before": (0.5, False),
    "gateway's tree, 10,000 subscriptions, match while others subscribe": (1.5, False),
    "gateway's tree, 10,000 subscriptions, match while others subscribe with #": (1.5, False),
    "CONNECT to CONNACK, HAProxy adds, p50": (1, False),
    "idle CPU, control plane of the balancer, 100 nodes": (2, False),
    "ready": (30, False),
    "idle CPU, whole system": (20, False),
    "memory, whole system": (2098, False),
    "publish to PUBACK at 100/s, p50": (3, False),
    "publish to delivery across gateways at 1,000/s, p50": (3, False),
    "publish to delivery across gateways at 1,000/s, p99": (20, False),
    "publish to delivery for five minutes at 1,000/s, p50": (3, False),
    "publish to delivery for five minutes at 1,000/s, p99": (20, False),
    "publish to delivery for five minutes at 1,000/s, p99.9": (60, False),
    "longest time without a delivery at 1,000/s": (150, False),
    "publish to delivery across a hand-over, 1,000/s, p50": (3, False),
    "publish to delivery across a hand-over, 1,000/s, p99": (20, False),
    "publish to delivery across a hand-over, 1,000/s, p99.9": (60, False),
    "longest time without a delivery across a hand-over": (150, False),
    "new subscription to SUBACK, p50": (10, False),
    "REST publish at 100/s, p50": (5, False),
    "live feed at 100/s, publish to event, p50": (100, False),
    "dashboard, first paint": (1_000, False),
    "resume with 1,000 missed messages, CONNECT to first": (150, False),
    "resume with 1,000 missed messages, CONNECT to last": (1_000, False),
    "kill of a gateway to resumed, 2,000 sessions, max": (20, False),
    "resume after 2,000,000 messages, 100 of them its own, CONNECT to last": (3, False),
    "SQL point query, 2,000,000 messages, warm": (1.5, False),
    "SQL aggregate of a day of 2,000,000 messages, warm": (3, False),
    "ready with 100,000 retained messages and 50,000 sessions": (60, False),
    "a session that outlives its connection adds, p50": (20, False),
    "a session that outlives its connection adds, p99": (20, False),
    "10 rules, each for a tenth of 1,000/s, publish to republished, p50": (10, False),
    "10 rules, each for a tenth of 1,000/s, publish to republished, p99": (60, False),
    "300 rules at 5,000/s, behind at the end": (0.5, False),
    "a rule changed to the first message by its new version, max": (3_000, False),
    "500 rules, first outputs of all": (10, False),
    "500 rules changed, first outputs of all": (10, False),
    "Spark killed with 500 rules, first outputs of all": (10, False),
    "dry run of a rule over 2,000,000 messages": (20, False),
    **{
        f"connects, one gateway{alone}, {kind}": (goal, True)
        for alone in ("", " alone")
        for kind, goal in _CONNECTS.items()
    },
    "ping beside 19,000 idle connections, p99": (5, False),
    **{
        f"{size:,} sessions, {what}": (goal, False)
        for size in (10_000, 100_000, 1_000_000)
        for what, goal in _OF_STORED_SESSIONS.items()
    },
    **{
        f"fleet of {size:,}{what}": goal
        for size in (10_000, 50_000)
        for what, goal in _OF_FLEETS.items()
    },
    "memory of an idle connection": (12, False),
    **{f"first hour, {what}": goal for what, goal in _OF_THE_FIRST_HOUR.items()},
    "fan-out 1 to 1,000, QoS 0": (100_000, True),
    "acknowledged, one gateway": (40_000, True),
    "end to end, sustained": (35_000, True),
    "processor time of a message, all stages": (50, False),
}


def figure(name: str, unit: str) -> Figure:
    """Return the figure of that name, with its goal if it has one."""
    goal, at_least = GOALS.get(name, (None, False))
    return Figure(name, unit, goal, at_least)


def percentiles(name: str, latency: Latency | None) -> Figures:
    """Return a figure for each percentile; none when nothing was measured."""
    if latency is None:
        return {}
    parts = {
        "p50": latency.p50,
        "p95": latency.p95,
        "p99": latency.p99,
        "p99.9": latency.p999,
        "max": latency.max,
    }
    return {
        figure(f"{name}, {part}", "ms"): value for part, value in parts.items() if value is not None
    }
