"""Routes of share groups as they were, by what the log has of them.

For a part of the past this is unknown: the router forgets how a group was, and so does the log
(`ShareGroup.java`, `mqlake.log.log_topics.COMPACTED_LATER`). There the routes are not known.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.session.groups.share_choices import NOBODY, UNKNOWN, Chosen, Weights
from mqlake.records.offsets import at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.session.groups.share_records import GroupKey
    from mqlake.topics.sharing import ShareWeight

ROUTER_KEEPS_MS: Final = 9 * 60 * 1000
"""So long the router knows how a group was before a change; a minute less, for clocks differ."""

ROUTER_KEEPS_STATES: Final = 64

LOG_KEEPS_MS: Final = 50 * 60 * 1000
"""Time for which the log has a route that another one has replaced, less ten minutes."""

UNREAD_MS: Final = 30 * 60 * 1000
"""A gateway that writes its memberships has read all deliveries that are older: the log keeps them
for less (`mqlake.log.log_topics.DELIVERY`), and one that misses some says since when."""

MOST_WEIGHTS: Final = 5_000
"""Weights of all states in one record together; those before are not known."""


class _Change(NamedTuple):
    """A route of a group."""

    offset: int
    """In `mqlake.routes`."""
    at_ms: int
    """By the log."""
    gateway: str
    weight: ShareWeight | None
    """None: withdrawn."""


class _Note(NamedTuple):
    """A barrier that has put routes in force."""

    offset: int
    """Offset of the barrier in a partition of `mqlake.inbound`."""
    routes: int
    """The last route in force from there on."""
    at_ms: int
    """When the router said so for the last time: it had given out all before."""


@dataclass(slots=True)
class _State:
    weights: Weights
    since: int
    """Offset of the route that made it so."""
    since_ms: int


class RoutesThen:
    """Routes of share groups as they were, and where they came into force.

    Args:
        now_ms: When all of it had been read, by the log's time.
    """

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._changes: dict[GroupKey, list[_Change]] = {}
        self._notes: dict[int, dict[int, _Note]] = {}

    def add_route(
        self, group: GroupKey, gateway: str, weight: ShareWeight | None, offset: int, at_ms: int
    ) -> None:
        """Take a route, in the order of `mqlake.routes`."""
        weight = weight if weight is not None and weight.members > 0 else None
        self._changes.setdefault(group, []).append(_Change(offset, at_ms, gateway, weight))

    def add_note(self, partition: int, offset: int, routes: int, at_ms: int) -> None:
        """Take a record of `mqlake.routes_in_force`."""
        notes = self._notes.setdefault(partition, {})
        known = notes.get(offset)
        notes[offset] = _Note(offset, routes, max(at_ms, at_ms if known is None else known.at_ms))

    def knows(self, partition: int, offset: int) -> bool:
        """Tell whether a note says what is in force at an offset."""
        return any(one <= offset for one in self._notes.get(partition, ()))

    def has_seen(self, partition: int, routes: int) -> bool:
        """Tell whether a route is in force somewhere in a partition: earlier notes are all here."""
        return any(one.routes >= routes for one in self._notes.get(partition, {}).values())

    def forget_notes_but_of(self, partitions: Sequence[int]) -> None:
        """Note that of other partitions some are missing: there nothing is known."""
        self._notes = {one: self._notes[one] for one in partitions if one in self._notes}

    def chosen(
        self,
        group: GroupKey,
        gateway: str,
        start: Sequence[int],
        end: Sequence[int],
        written_ms: int,
    ) -> Chosen:
        """Return which messages of a range were a gateway's by its last route.

        An earlier route of its name was that of another membership.

        Args:
            group: Which.
            gateway: Its name.
            start: Per partition the first offset.
            end: Per partition the first one that does not count.
            written_ms: When it wrote its membership: what was given out long before, it has read.
        """
        states = self._states(group)
        own = _last_presence(states, gateway)
        first, left = own.stop, MOST_WEIGHTS
        while first > own.start and len(states[first - 1].weights) <= left:
            first -= 1
            left -= len(states[first].weights)
        kept = range(first, own.stop)
        begins = []
        for partition in range(len(end)):
            places: list[tuple[int, int]] = []
            for offset, index in self._in_force(
                states, partition, at(start, partition), at(end, partition), written_ms
            ):
                number = UNKNOWN if index == UNKNOWN or index in own else NOBODY
                if index in kept:
                    number = index - first + 1
                if not places or places[-1][1] != number:
                    places.append((offset, number))
            begins.append(places)
        return Chosen(gateway, [states[index].weights for index in kept], begins)

    def _states(self, group: GroupKey) -> list[_State]:
        states = [_State({}, -1, 0)]
        for change in self._changes.get(group, ()):
            weights = dict(states[-1].weights)
            if change.weight is None:
                if weights.pop(change.gateway, None) is None:
                    continue
            else:
                weights[change.gateway] = change.weight
            states.append(_State(weights, change.offset, change.at_ms))
        return states

    def _in_force(
        self, states: Sequence[_State], partition: int, start: int, end: int, written_ms: int
    ) -> list[tuple[int, int]]:
        """Return per stretch of a range its first offset and the state of then, or `UNKNOWN`.

        In the first state, which is empty, no gateway was given an unknown message.
        """
        if start >= end:
            return []
        notes = sorted(self._notes.get(partition, {}).values())
        before = bisect_right(notes, start, key=lambda one: one.offset) - 1
        sinces = [state.since for state in states]
        found = []
        for number in range(before, len(notes)):
            # Before the first note it is unknown what was in force.
            note = notes[number] if number >= 0 else None
            if note is not None and note.offset >= end:
                break
            given_out_ms = notes[number + 1].at_ms if number + 1 < len(notes) else self._now_ms
            index = UNKNOWN if note is None else bisect_right(sinces, note.routes) - 1
            if given_out_ms < written_ms - UNREAD_MS:
                index = 0
            elif index != UNKNOWN and not self._is_known(states, index, given_out_ms):
                index = UNKNOWN
            found.append((start if note is None else max(start, note.offset), index))
        return found

    def _is_known(self, states: Sequence[_State], index: int, given_out_ms: int) -> bool:
        """Tell whether a state is what the router went by, and what the log still says."""
        later = states[index + 1 :]
        if not later:
            return True
        told = [one for one in later if one.since_ms <= given_out_ms]
        return (
            given_out_ms - later[0].since_ms <= ROUTER_KEEPS_MS
            and len(told) < ROUTER_KEEPS_STATES
            and self._now_ms - later[0].since_ms <= LOG_KEEPS_MS
        )


def _last_presence(states: Sequence[_State], gateway: str) -> range:
    """Return the states from the last time that a gateway came to when it had gone again."""
    end = len(states)
    while end and gateway not in states[end - 1].weights:
        end -= 1
    begin = end
    while begin and gateway in states[begin - 1].weights:
        begin -= 1
    return range(begin, end)
