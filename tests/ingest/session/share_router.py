"""The router of the simulated world of a share group: it lags, crashes, and repeats itself.

What it gives is on its way for a time, to each gateway on its own, and so is its note of the routes
that a barrier has put in force. Who crashes loses what is on its way, and begins again before the
first of that, with the routes that were in force there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final

from ingest.session.groups.share_routes import RoutesThen
from mqlake.topics.sharing import ShareWeight
from tests.ingest.session.simulation.log import START_MS

if TYPE_CHECKING:
    from ingest.session.groups.share_records import GroupKey
    from tests.ingest.session.share_simulation import ShareWorld

_LAGS_MS: Final = (0, 0, 1, 2, 5, 30, 200)
_LOOK_MS: Final = 300
_NOTES: Final = ""
"""Where notes of the routes in force go, as if that was a gateway."""


@dataclass(frozen=True, slots=True)
class Barrier:
    gateway: str
    name: str
    routes: int
    """So many route records the router must have applied."""


@dataclass(slots=True)
class Delivery:
    """What the router gave to a gateway."""

    offset: int
    """In the stream of what was published."""
    barrier: str | None = None
    in_force: int = 0
    """So many routes, from here on."""
    at: int = 0
    """When the log had it, in ms."""


def choose(names: list[str], offset: int) -> str:
    """Return the gateway that gets a message, of those that have the group."""
    return names[offset * 7 % len(names)]


class Router:
    """Gives each message to a gateway that has the route of the group.

    Args:
        world: Its schedule says whether the router crashes; else nothing is long on its way.
        group: The one that there is.

    Attributes:
        stream: What was published, and barriers.
        routes: The route records: a gateway has the group from there on, or has it no more.
        routes_at: When the log had each, in ms.
        deliveries: What the log has, by gateway.
        begins: Of these, what is before has been removed.
        keeps_deliveries: Until they are settled.
    """

    def __init__(self, world: ShareWorld, group: GroupKey) -> None:
        self.world = world
        self._group = group
        self.stream: list[str | Barrier] = []
        self.routes: list[tuple[str, bool]] = []
        self.routes_at: list[int] = []
        self.deliveries: dict[str, list[Delivery]] = {}
        self.begins: dict[str, int] = {}
        self.keeps_deliveries = True
        self._random = Random(f"router {world.schedule.seed}")
        self._lags = any(fault.what == "router" for fault in world.schedule.faults)
        self._on_its_way: dict[str, list[Delivery]] = {}
        self._in_force = 0
        self._next = 0
        self._is_waking = False
        self._away_until = 0

    def put(self, entry: str | Barrier) -> None:
        self.stream.append(entry)
        self._wake()

    def route(self, gateway: str, *, is_there: bool) -> int:
        self.world.note("routes", f"{gateway} {'has' if is_there else 'has not'} the group")
        self.routes.append((gateway, is_there))
        self.routes_at.append(self.world.now)
        return len(self.routes)

    def crash(self, ms: int) -> None:
        """Lose what is on its way, and be away for so long."""
        lost = [one.offset for waiting in self._on_its_way.values() for one in waiting]
        self._on_its_way.clear()
        first = min([self._next, *lost])
        self._next = max(0, first - self._random.choice((0, 0, 1, 5)))
        notes = self.deliveries.get(_NOTES, ())
        self._in_force = max((one.in_force for one in notes if one.offset < self._next), default=0)
        self._away_until = self.world.now + ms
        self._wake()

    def remove_some(self, gateway: str) -> int:
        """Remove the oldest deliveries to a gateway if they are not kept; return where they begin.

        Those that were read just now go last.
        """
        begin = self.begins.get(gateway, 0)
        if not self.keeps_deliveries:
            count = len(self.deliveries[gateway])
            begin = max(begin, count - self._random.choice((1, 1, 2, 5)))
            self.begins[gateway] = begin
        return begin

    def has_noted(self, routes: int) -> bool:
        """Tell whether the log says where so many routes are in force."""
        return any(one.in_force >= routes for one in self.deliveries.get(_NOTES, ()))

    def routes_then(self) -> RoutesThen:
        """Return the routes as a settler reads them in the log."""
        then = RoutesThen(START_MS + self.world.now)
        for number, (gateway, is_there) in enumerate(self.routes):
            weight = ShareWeight(1) if is_there else None
            at_ms = START_MS + self.routes_at[number]
            then.add_route(self._group, gateway, weight, number, at_ms)
        for note in self.deliveries.get(_NOTES, ()):
            then.add_note(0, note.offset, note.in_force - 1, START_MS + note.at)
        return then

    def return_soon(self) -> None:
        self._away_until = min(self._away_until, self.world.now)

    def _wake(self) -> None:
        if not self._is_waking:
            self._is_waking = True
            self.world.at(self.world.random.choice((1, 2, 3, 10)), self._work)

    def _work(self) -> None:
        self._is_waking = False
        away_ms = self._away_until - self.world.now
        if away_ms > 0:
            self._is_waking = True
            self.world.at(min(away_ms, _LOOK_MS), self._work)
            return
        while self._next < len(self.stream):
            offset, entry = self._next, self.stream[self._next]
            if isinstance(entry, Barrier):
                if entry.routes > self._in_force:
                    self._in_force = entry.routes
                    self._give(_NOTES, Delivery(offset, in_force=entry.routes))
                self._give(entry.gateway, Delivery(offset, entry.name))
            else:
                names = self._present()
                if names:
                    self._give(choose(names, offset), Delivery(offset))
            self._next += 1

    def _present(self) -> list[str]:
        present = dict(self.routes[: self._in_force])
        return sorted(gateway for gateway, is_there in present.items() if is_there)

    def _give(self, gateway: str, delivery: Delivery) -> None:
        self._on_its_way.setdefault(gateway, []).append(delivery)
        if self._lags:
            self.world.at(self._random.choice(_LAGS_MS), self._land, gateway)
        else:
            self._land(gateway)

    def _land(self, gateway: str) -> None:
        for delivery in self._on_its_way.pop(gateway, ()):
            self.world.note("router", f"{delivery} to {gateway}")
            self.deliveries.setdefault(gateway, []).append(replace(delivery, at=self.world.now))
        for process in self.world.processes:
            if process.is_alive and process.me.gateway == gateway:
                process.wake("deliveries")
